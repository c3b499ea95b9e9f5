// Notes: filtered, recalled with the reasons of each score, pinned, edited and forgotten.

import { at, get, send } from "./api.js";
import { ago, count, cut, fill, h, label, longText, visible } from "./dom.js";
import { attempt, button, confirmDeletion, dialog, empty, load, python, toast } from "./ui.js";

const PAGE = 50;
const PARTS = {
  words: "words of the note", neighbours: "neighbours in the session", context: "other passages of the query",
  question: "is only a question", speaker: "speaker", cap: "cut to 1, the highest score", semantic: "meaning", calibration: "the scale of scores with a model",
  "single word": "has only one of the words", time: "time that the question names", newer: "newer than the note it replaces",
  scale: "words and meaning count 60 %", recency: "how recent", frequency: "how often remembered",
};

export function notesView(context) {
  const { namespace, query, signal, who } = context;
  const filters = { type: query.get("type") ?? "", tag: query.get("tag") ?? "", session: query.get("session") ?? "" };
  const list = h("section.panel", { "aria-label": "Notes" });
  const recalled = h("section.panel", { "aria-label": "Recalled notes", hidden: true });
  const draw = () => load(list, () => drawList({ namespace, filters, signal, who, changed }));
  const recall = recallBox(context, filters, recalled, () => changed());
  const changed = () => Promise.all([drawChoices(), draw(), recall.again()]);
  const choices = h("div.row", {});
  const drawChoices = () => attempt(async () => {
    const labels = await get(at(namespace, "labels"), {}, { signal });
    if (choices.contains(document.activeElement)) return; // the person is choosing
    fill(choices, ["type", "tag", "session"].map((name) => choice(name, labels[`${name}s`], filters, () => Promise.all([draw(), recall.again()]))));
  });
  drawChoices();
  draw();
  return h("div.stack", {}, recall.node, recalled, h("div.row.next", {}, h("h2.grow", {}, "All notes"), choices), list);
}

/** A filter by one kind of label: those that exist, with the number of their notes. */
function choice(name, labels, filters, changed) {
  const known = labels.some((each) => each.label === filters[name]) || !filters[name];
  const options = [...labels.map((each) => [each.label, ` (${count(each.notes)})`]), ...(known ? [] : [[filters[name], ""]])];
  const node = h("select", { "aria-label": name, disabled: !options.length, onchange: () => { filters[name] = node.value; changed(); } },
    h("option", { value: "" }, options.length ? `any ${name}` : `no ${name}s`),
    options.map(([text, number]) => h("option", { value: text }, `${cut(visible(text), 40)}${number}`)));
  node.value = filters[name];
  return node;
}

async function drawList({ namespace, filters, signal, who, changed }) {
  const rows = h("ul.notes", {});
  const foot = h("div.pad", {});
  const more = async (after = "") => {
    const { notes } = await get(at(namespace, "notes"), { ...filters, after, limit: PAGE }, { signal });
    rows.append(...notes.map((note) => row(namespace, note, who, changed)));
    fill(foot, notes.length === PAGE && button("Show more", () => more(notes.at(-1).number ?? notes.at(-1).id)));
    foot.hidden = notes.length < PAGE;
  };
  await more();
  if (rows.childElementCount) return [rows, foot];
  if (Object.values(filters).some(Boolean)) return empty("No note matches", "Change the filters above.");
  return empty("No notes in this namespace", "A note is a text that is found by its words:",
    python(namespace, 'memory.remember("Sarah prefers short answers", type="preference")'));
}

function row(namespace, note, who, changed) {
  return h("li", {},
    h("div.content", { dir: "auto" }, longText(note.content)), note.score !== null && score(note),
    h("div.row.small", {},
      note.superseded_by && h("span.tag.warn", { title: "Another note replaced it; it is no longer recalled" }, "superseded"),
      note.pinned && h("span.tag.accent", {}, "pinned"), note.type && h("span.tag", {}, label(note.type, 60)),
      note.tags.map((tag) => h("span.tag", {}, "#", label(tag, 60))),
      note.session && h("span.soft", {}, "session ", label(note.session, 60)),
      note.times > 1 && h("span.soft", {}, `remembered ${note.times} times`),
      h("span.soft", {}, ago(note.updated_at)), note.expires_at && h("span.tag.warn", {}, "expires ", ago(note.expires_at)),
      !who.read_only && h("span.actions", {}, // a superseded note that is stored again would be current again
        !note.superseded_by && button(note.pinned ? "Unpin" : "Pin", async () => { await replace(namespace, { ...note, pinned: !note.pinned }); changed(); }, { kind: "plain" }),
        !note.superseded_by && button("Edit", () => edit(namespace, note, changed), { kind: "plain" }),
        button("Forget", () => forget(namespace, note, changed), { kind: "plain danger" }))));
}

// ---------------------------------------------------------------- recall

/** The form, and a function that asks the last question again. */
function recallBox({ namespace, signal, who }, filters, place, changed) {
  let asked = "";
  const question = h("input", { type: "search", "aria-label": "What would an agent ask?", placeholder: "What would an agent ask? See what it recalls, and why", class: "grow" });
  const run = () => load(place, async () => {
    place.hidden = false;
    const { type, tag, session } = filters;
    const body = { query: asked, limit: 8, explain: true, type: type || null, tags: tag ? [tag] : null, session: session || null };
    const { notes } = await send("POST", at(namespace, "notes", "recall"), { body, signal });
    if (!notes.length && (type || tag || session)) return empty("Nothing is recalled", "No note that passes the filters below fits this question.");
    if (!notes.length) return empty("Nothing is recalled", "No note shares enough words, or enough meaning, with this question.");
    return [h("header", {}, h("h2", {}, "Recalled, best first")), h("ul.notes", {}, notes.map((note) => row(namespace, note, who, changed)))];
  });
  const node = h("form.row", { role: "search", onsubmit: (event) => {
    event.preventDefault();
    asked = question.value.trim();
    if (asked) attempt(run);
  } }, question, h("button.primary", { type: "submit" }, "Recall"));
  return { node, again: () => (asked ? run() : null) };
}

/** The score of a recalled note, and what it is made of. */
function score({ score: total, explanation }) {
  const parts = Object.entries(explanation?.parts ?? {}).filter(isShown);
  const bars = h("div.parts", { role: "img", "aria-label": parts.map(([name, value]) => `${PARTS[name] ?? name} ${signed(value)}`).join(", ") });
  for (const [name, value] of parts.filter(([, each]) => each > 0)) {
    const part = h("i", { class: colourOf(name), title: PARTS[name] ?? name });
    part.style.width = `${value * 100}%`;
    bars.append(part);
  }
  const words = Object.entries(explanation?.words ?? {}).filter(isShown);
  return h("div.stack.explanation", {},
    h("div.score", {}, h("b", {}, total.toFixed(2)), bars),
    h("div.legend", {}, parts.map(([name, value]) => h("span", {}, h("i", { class: colourOf(name) }), `${PARTS[name] ?? name} ${signed(value)}`))),
    words.length > 0 && h("div.row.small", {}, h("span.soft", {}, "matching words:"),
      words.map(([word, value]) => h("span.tag", { title: word.endsWith("…") && "Words that begin like this" }, visible(word), " ", h("span.soft", {}, signed(value))))));
}

function colourOf(name) {
  return `p-${name in PARTS ? name.replace(" ", "-") : "other"}`;
}

/** Whether a part of a score is more than +0.00. */
const isShown = ([, value]) => Number(value.toFixed(2)) !== 0;

function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
}

// ---------------------------------------------------------------- changes

function fieldsOf(note) {
  const { id, content, type, tags, session, pinned, metadata, expires_at } = note;
  const ttl = expires_at && !pinned ? Math.max((new Date(expires_at) - Date.now()) / 1000, 1) : null; // it expires when it did
  return { id, content, type, tags: tags.length ? tags : null, session, pinned, metadata, ttl };
}

/** One request: all fields of the note with this id are replaced. */
function replace(namespace, note) {
  return send("POST", at(namespace, "notes"), { body: fieldsOf(note) });
}

async function edit(namespace, note, changed) {
  const content = h("textarea", { value: note.content, rows: 5 });
  const type = h("input", { value: note.type ?? "" }), tags = h("input", { value: note.tags.join(", ") });
  const pinned = h("input", { type: "checkbox" });
  pinned.checked = note.pinned;
  const saved = await dialog("Edit the note", (close) => h("form", { onsubmit: (event) => {
    event.preventDefault();
    attempt(async () => {
      const list = tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
      await replace(namespace, { ...note, content: content.value, type: type.value || null, tags: list, pinned: pinned.checked });
      close(true);
    });
  } }, h("label", {}, "Text", content), h("div.fields", {}, h("label", {}, "Type", type), h("label", {}, "Tags, separated by commas", tags)),
  h("label.check", {}, pinned, "Pinned: never expires"),
  h("div.buttons", {}, h("button", { type: "button", onclick: () => close(null) }, "Cancel"), h("button.primary", { type: "submit" }, "Save"))));
  if (!saved) return;
  toast("Saved");
  changed();
}

async function forget(namespace, note, changed) {
  if (!await confirmDeletion("Forget this note?", "It is overwritten in the file and cannot be brought back.", { action: "Forget" })) return;
  await send("DELETE", at(namespace, "notes", note.id));
  toast("Forgotten");
  changed();
}
