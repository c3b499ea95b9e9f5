// One person: what a namespace has under a name, shown first, and erased after the name was typed.

import { at, get, send } from "./api.js";
import { cut, h, hasWord, label, plural, visible } from "./dom.js";
import { confirmDeletion, dialog, toast } from "./ui.js";
import { placeOf, sessionOf, unquoted } from "./namespace.js";

const NOTES_PAGE = 500;
const MOST_PAGES = 20; // pages of notes that are looked through for a name
const NO_PERSON = "default"; // the session of agents that were given none

/**
 * Show what bears a name, ask for it to be typed, erase what is chosen, and show what was deleted and what remains.
 * `session` is one that belongs to the person in any case. Resolves with true if anything was erased.
 */
export async function erasePerson(namespace, name, session = null) {
  const found = await find(namespace, name, session);
  const choices = [...found.sessions, ...found.values, ...found.notes];
  if (!choices.length) {
    toast(`Nothing in this namespace has the name “${visible(name)}”.`);
    return false;
  }
  const boxes = new Map(choices.map((choice) => [choice, checkbox(choice)]));
  const body = [
    group("Sessions with all their data", found.sessions, boxes),
    group("Values with the name in their key", found.values, boxes),
    group("Notes that mention the name", found.notes, boxes),
    found.isCut && h("p.soft.small", {}, `Only the first ${MOST_PAGES * NOTES_PAGE} notes were looked through.`),
  ];
  const sure = await confirmDeletion(`Erase “${visible(name)}”?`,
    "What is ticked is deleted for good. The names of its keys stay in the log of changes.", { typed: name, action: "Erase", body, wide: true });
  if (!sure) return false;
  const erased = await erase(namespace, choices.filter((choice) => boxes.get(choice).checked));
  await showResult(namespace, name, erased, await find(namespace, name, null));
  return true;
}

// ---------------------------------------------------------------- finding

async function find(namespace, name, session) {
  const isPerson = name !== NO_PERSON;
  const [keys, labels, mentions] = await Promise.all([
    isPerson ? keysWith(namespace, name) : [], get(at(namespace, "labels")), isPerson ? mentionsOf(namespace, name) : [],
  ]);
  const notesOf = new Map(labels.sessions.map((each) => [each.label, each.notes]));
  const names = new Set([
    ...(session === null ? [] : [session]), ...keys.map(sessionWith).filter((each) => each !== null && hasWord(each, name)),
    ...(isPerson ? [...notesOf.keys()].filter((each) => hasWord(each, name)) : []),
  ]);
  const withKeys = new Set(keys.filter((each) => isOfSession(each.key)).map((each) => sessionOf(each.key)));
  const sessions = (await Promise.all([...names].map((each) => sessionChoice(namespace, each, notesOf.get(each) ?? 0, session === each, withKeys.has(each)))))
    .filter(Boolean);
  const taken = new Set(sessions.flatMap((each) => each.keys)), erased = new Set(sessions.map((each) => each.session));
  const isFree = (key) => !taken.has(key) && !(isOfSession(key) && erased.has(sessionOf(key)));
  const { notes, isCut } = isPerson ? await notesWith(namespace, name, erased) : { notes: [], isCut: false };
  return {
    sessions, notes, isCut,
    values: keys.filter((each) => isFree(each.key)).map((each) => ({
      title: each.key, detail: each.length === null ? each.preview : plural(each.length, "item"), path: at(namespace, "items", each.key), values: 1,
    })),
    mentions: mentions && mentions.filter((each) => isFree(each.key) && !hasWord(each.key, name)),
  };
}

/** Keys that have the name as whole words. */
async function keysWith(namespace, name) {
  const [first = name] = name.match(/[\p{L}\p{N}]+/gu) ?? [];
  const { entries } = await get(at(namespace, "entries"), { search: first, limit: 10_000 });
  return entries.filter((each) => hasWord(unquoted(each.key), name));
}

/** The session that a key may belong to; a list of its own may be a conversation with the name of its key. */
function sessionWith({ key, length }) {
  return isOfSession(key) || (length !== null && !key.endsWith(":ids")) ? sessionOf(key) : null;
}

const isOfSession = (key) => key.startsWith("session:");

async function sessionChoice(namespace, session, notes, isRequired, hasKeys) {
  const { conversations } = await get(at(namespace, "conversations"), { session, limit: 1000 });
  const messages = conversations.reduce((sum, each) => sum + each.messages, 0);
  if (!isRequired && !conversations.length && !notes && !hasKeys) return null; // a list, but not of messages
  return {
    session, title: session, detail: `${plural(messages, "message")}, ${plural(notes, "note")}`, path: at(namespace, "sessions", session),
    isRequired, sessions: 1, messages, notes, keys: conversations.flatMap(({ key }) => [key, `${key}:ids`, `learned:${key}`]),
  };
}

async function notesWith(namespace, name, erased) {
  const notes = [];
  let after = "", page = [], pages = 0;
  do {
    page = (await get(at(namespace, "notes"), { after, limit: NOTES_PAGE })).notes;
    notes.push(...page.filter((note) => !erased.has(note.session) && hasWord(note.content, name)));
    after = page.at(-1)?.number ?? page.at(-1)?.id;
    pages += 1;
  } while (page.length === NOTES_PAGE && pages < MOST_PAGES);
  return {
    notes: notes.map((note) => ({ title: note.content, detail: note.type ?? "", path: at(namespace, "notes", note.id), notes: 1 })),
    isCut: page.length === NOTES_PAGE,
  };
}

/** Values and messages that mention the name in their text; null if there is too much to search. */
async function mentionsOf(namespace, name) {
  try {
    const { matches } = await send("POST", at(namespace, "search"), { body: { query: name, limit: 100 } });
    return matches.filter((each) => hasWord(JSON.stringify(each.value), name)).sort((a, b) => (a.key === b.key ? a.position - b.position : a.key < b.key ? -1 : 1));
  } catch (error) {
    if (error.status === 400) return null;
    throw error;
  }
}

// ---------------------------------------------------------------- choosing and erasing

function checkbox({ isRequired }) {
  const box = h("input", { type: "checkbox", disabled: isRequired });
  box.checked = true;
  return box;
}

function group(title, choices, boxes) {
  return choices.length > 0 && h("fieldset.choices", {}, h("legend", {}, title),
    choices.map((choice) => h("label.check", {}, boxes.get(choice), label(choice.title, 120), h("span.soft.right.grow", {}, cut(visible(choice.detail), 80)))));
}

async function erase(namespace, chosen) {
  const erased = { sessions: 0, messages: 0, values: 0, notes: 0 };
  for (const choice of chosen) {
    try {
      await send("DELETE", choice.path);
    } catch (error) {
      if (error.status === 404) continue; // deleted by somebody else meanwhile
      throw error;
    }
    for (const kind of Object.keys(erased)) erased[kind] += choice[kind] ?? 0;
  }
  return erased;
}

function showResult(namespace, name, erased, left) {
  const parts = Object.entries(erased).filter(([, number]) => number).map(([kind, number]) => plural(number, kind.slice(0, -1)));
  const kept = [...left.sessions, ...left.values, ...left.notes].map((each) => each.title);
  return dialog(`Erased “${visible(name)}”`, (close) => {
    const link = (each) => h("li", {}, h("a", { href: placeFor(namespace, each), onclick: () => close(null) },
      label(each.key, 60), each.position === null ? "" : ` #${each.position}`));
    return [
      h("p", {}, `Deleted: ${parts.join(", ") || "nothing"}.`),
      kept.length > 0 && h("p.soft", {}, `Kept, as you chose: ${kept.map((each) => cut(visible(each), 60)).join(", ")}.`),
      left.mentions === null && h("p.soft", {}, "There is too much in this namespace to search all of its texts for the name."),
      left.mentions?.length > 0 && [h("p.soft", {}, "Other texts still mention the name. Open them to edit or delete them:"),
        h("ul.links", {}, left.mentions.slice(0, 20).map(link)), left.mentions.length > 20 && h("p.soft.small", {}, `and ${left.mentions.length - 20} more`)],
      !kept.length && left.mentions?.length === 0 && h("p.soft", {}, "Nothing else in this namespace has the name."),
      h("div.buttons", {}, h("button.primary", { type: "button", onclick: () => close(true) }, "Done")),
    ];
  });
}

function placeFor(namespace, { key, position }) {
  return position === null ? placeOf(namespace, "items", key) : `${placeOf(namespace, "chats", key)}?message=${position}`;
}
