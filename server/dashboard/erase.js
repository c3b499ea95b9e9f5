// One person: what a namespace has under a name, shown first, and erased after the name was typed.

import { at, get, send } from "./api.js";
import { count, cut, h, hasWord, label, plural, visible } from "./dom.js";
import { confirmDeletion, dialog, toast } from "./ui.js";
import { placeOf, sessionOf, unquoted } from "./namespace.js";

// How much is looked through for a name; what is left out is said.
const KEYS_PAGE = 10_000, MOST_KEYS = 100_000;
const NOTES_PAGE = 500, MOST_NOTES = 10_000;
const MOST_LABELS = 1000; // sessions of notes that the server lists
const MOST_MENTIONS = 100;
const NO_PERSON = "default"; // the session of agents that were given none

/**
 * Show what bears a name, ask for it to be typed, erase what is chosen, and show what was deleted and what remains.
 * `session` is one that belongs to the person in any case. Resolves with true if anything was erased.
 */
export async function erasePerson(namespace, name, session = null) {
  if (session === null && !hasWord(name, name)) throw new Error("A name has a letter or a digit; type another one.");
  const found = await find(namespace, name, session);
  const choices = [...found.sessions, ...found.values, ...found.notes];
  if (!choices.length) {
    toast([`No session, key or note was found with the name “${visible(name)}”.`, ...found.cuts].join(" "));
    return false;
  }
  const boxes = new Map(choices.map((choice) => [choice, checkbox(choice)]));
  const body = [
    group("Sessions with all their data", found.sessions, boxes),
    group("Values with the name in their key", found.values, boxes),
    group("Notes that mention the name", found.notes, boxes),
    found.cuts.length > 0 && h("p.soft.small", {}, found.cuts.join(" ")),
  ];
  const sure = await confirmDeletion(`Erase “${visible(name)}”?`,
    "What is ticked is deleted for good. The names of its keys stay in the log of changes.", { typed: name, action: "Erase", body, wide: true });
  if (!sure) return false;
  const erased = await erase(namespace, choices.filter((choice) => boxes.get(choice).checked));
  await showResult(namespace, name, erased, await find(namespace, name, null), new Set(choices.map((each) => each.path)));
  return true;
}

// ---------------------------------------------------------------- finding

async function find(namespace, name, session) {
  const isPerson = name !== NO_PERSON;
  const none = { found: [], isCut: false };
  const isNamed = (each) => each !== null && (each === session || (isPerson && hasWord(each, name)));
  const [{ found: keys, isCut: hasMoreKeys }, { found: notes, isCut: hasMoreNotes }, labels, mentions] = await Promise.all([
    isPerson ? keysWith(namespace, name) : none,
    isPerson ? readAll(at(namespace, "notes"), "notes", {}, NOTES_PAGE, MOST_NOTES, (note) => isNamed(note.session) || hasWord(note.content, name)) : none,
    get(at(namespace, "labels")), isPerson ? mentionsOf(namespace, name) : none,
  ]);
  const notesOf = new Map();
  for (const note of notes) notesOf.set(note.session, (notesOf.get(note.session) ?? 0) + 1);
  for (const each of labels.sessions) notesOf.set(each.label, each.notes); // of all notes, so these count more
  const names = new Set([...(session === null ? [] : [session]), ...keys.map(sessionWith), ...notesOf.keys()].filter(isNamed));
  const withKeys = new Set(keys.filter((each) => isOfSession(each.key)).map((each) => sessionOf(each.key)));
  const sessions = (await Promise.all([...names].map((each) => sessionChoice(namespace, each, notesOf.get(each) ?? 0, session === each, withKeys.has(each)))))
    .filter(Boolean);
  const taken = new Set(sessions.flatMap((each) => each.keys)), erased = new Set(sessions.map((each) => each.session));
  const isFree = (key) => !taken.has(key) && !(isOfSession(key) && erased.has(sessionOf(key)));
  return {
    sessions,
    values: keys.filter((each) => isFree(each.key)).map((each) => ({
      title: each.key, detail: each.length === null ? each.preview : plural(each.length, "item"), path: at(namespace, "items", each.key), values: 1,
    })),
    notes: notes.filter((note) => !erased.has(note.session)).map((note) => ({
      title: note.content, detail: note.type ?? "", path: at(namespace, "notes", note.id), notes: 1,
    })),
    cuts: [
      hasMoreKeys && `Of the keys that have a part of the name, only the first ${count(MOST_KEYS)} were looked through.`,
      hasMoreNotes && `Only the first ${count(MOST_NOTES)} notes were looked through.`,
      hasMoreNotes && labels.sessions.length >= MOST_LABELS && "Of the sessions of the others, only those with the most notes were.",
    ].filter(Boolean),
    mentions: mentions && { isCut: mentions.isCut, found: mentions.found.filter((each) => isFree(each.key) && !hasWord(each.key, name)) },
  };
}

/** What is wanted of a list that comes in pages of `size`, and whether there is more than the `most` that are read. */
async function readAll(path, field, query, size, most, isWanted) {
  const found = [];
  let page = [], read = 0;
  do {
    const last = page.at(-1);
    page = (await get(path, { ...query, after: last?.key ?? last?.number ?? last?.id, limit: size }))[field];
    found.push(...page.filter(isWanted));
    read += page.length;
  } while (page.length === size && read < most);
  return { found, isCut: page.length === size };
}

/** Keys that have the name as whole words, with its accents as letters of their own or not. */
async function keysWith(namespace, name) {
  const parts = new Set(["NFC", "NFD"].map((form) => (name.normalize(form).match(/[\p{L}\p{M}\p{N}]+/u) ?? [name])[0]));
  const lists = await Promise.all([...parts].map((part) => readAll(
    at(namespace, "entries"), "entries", { search: part }, KEYS_PAGE, MOST_KEYS, (each) => hasWord(unquoted(each.key), name))));
  const found = new Map(lists.flatMap((each) => each.found).map((each) => [each.key, each]));
  return { found: [...found.values()], isCut: lists.some((each) => each.isCut) };
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

/** Values and messages that mention the name in their text; null if there is too much to search. */
async function mentionsOf(namespace, name) {
  try {
    const { matches } = await send("POST", at(namespace, "search"), { body: { query: name, limit: MOST_MENTIONS } });
    const found = matches.filter((each) => hasWord(JSON.stringify(each.value).replace(/\\(u[0-9a-f]{4}|.)/g, " "), name));
    return {
      found: found.sort((a, b) => (a.key === b.key ? a.position - b.position : a.key < b.key ? -1 : 1)), isCut: matches.length === MOST_MENTIONS,
    };
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

function showResult(namespace, name, erased, left, offered) {
  const parts = Object.entries(erased).filter(([, number]) => number).map(([kind, number]) => plural(number, kind.slice(0, -1)));
  const rest = [...left.sessions, ...left.values, ...left.notes];
  const kept = rest.filter((each) => offered.has(each.path)), more = rest.length - kept.length;
  const others = left.mentions?.found ?? [];
  return dialog(`Erased “${visible(name)}”`, (close) => {
    const link = (each) => h("li", {}, h("a", { href: placeFor(namespace, each), onclick: () => close(null) },
      label(each.key, 60), each.position === null ? "" : ` #${each.position}`));
    return [
      h("p", {}, `Deleted: ${parts.join(", ") || "nothing"}.`),
      kept.length > 0 && h("p.soft", {}, `Kept, as you chose: ${kept.map((each) => cut(visible(each.title), 60)).join(", ")}.`),
      more > 0 && h("p.soft", {}, `Found only now: ${plural(more, "thing")} with the name. Erase it once more.`),
      left.mentions === null && h("p.soft", {}, "There is too much in this namespace to search all of its texts for the name."),
      others.length > 0 && [h("p.soft", {}, "Other texts still mention the name. Open them to edit or delete them:"),
        h("ul.links", {}, others.slice(0, 20).map(link)), others.length > 20 && h("p.soft.small", {}, `and ${others.length - 20} more`)],
      left.mentions?.isCut && h("p.soft", {}, `Only the ${MOST_MENTIONS} texts that fit the name best were looked at.`),
      left.cuts.length > 0 && h("p.soft", {}, left.cuts.join(" ")),
      !rest.length && !others.length && left.mentions && !left.mentions.isCut && !left.cuts.length
        && h("p.soft", {}, "Nothing else in this namespace has the name."),
      h("div.buttons", {}, h("button.primary", { type: "button", onclick: () => close(true) }, "Done")),
    ];
  });
}

function placeFor(namespace, { key, position }) {
  return position === null ? placeOf(namespace, "items", key) : `${placeOf(namespace, "chats", key)}?message=${position}`;
}
