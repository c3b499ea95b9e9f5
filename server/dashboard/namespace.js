// One namespace: its usage, and a tab for each kind of content.

import { cursorOf, get, watch } from "./api.js";
import { ago, closest, count, fill, h, label, size } from "./dom.js";
import { bar, didYouMean, empty, limited, python } from "./ui.js";
import { chatsView } from "./chats.js";
import { itemsView } from "./items.js";
import { notesView } from "./notes.js";
import { namespaceActivityView } from "./activity.js";
import { manageView } from "./manage.js";

const FIGURES_MS = 1000; // the figures follow changes at most this often
const TABS = [
  ["chats", "Conversations", chatsView], ["items", "Items", itemsView], ["notes", "Notes", notesView],
  ["activity", "Activity", namespaceActivityView], ["manage", "Manage", manageView],
];

/** The address of a tab of a namespace, or of what is open in it. */
export function placeOf(namespace, tab, key = null) {
  const parts = ["n", namespace, tab, ...(key === null ? [] : [key])];
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

/** A part of a key, or a key, without the signs that stand for "%" and ":". */
export function unquoted(text) {
  return text.replace(/(?:%[0-9a-f]{2})+/gi, (signs) => { try { return decodeURIComponent(signs); } catch { return signs; } });
}

/** The session that a key belongs to, by the server's rules; a key of no session is one of its own. */
export function sessionOf(key) {
  const [, quoted] = /^session:([^:]*)/.exec(key) ?? [];
  if (quoted !== undefined) return unquoted(quoted);
  return /^(learned:)?(messages|conversation_history|speaker_history)(:ids)?$|^with:|^state:/.test(key) ? "default" : key;
}

export async function namespaceView({ parts, query, who, signal }) {
  const [, namespace, tab, key = null] = parts;
  const cursor = await cursorOf(namespace, signal); // before anything is read, so that no change is missed
  const summary = await findSummary(namespace, signal);
  const live = h("span.tag.live.off", { role: "status" });
  const listen = follow(namespace, cursor, signal, live);
  if (!summary) return missing(namespace, who, listen, signal);
  const figures = h("dl.facts.compact", {}, usage(summary));
  keepCurrent(figures, namespace, listen, signal);
  const chosen = tab ?? (summary.has_conversation ? "chats" : summary.notes && !summary.keys ? "notes" : "items");
  const view = (TABS.find(([name]) => name === chosen) ?? TABS[1])[2];
  return [
    h("div.row.heading", {}, title(namespace), live, figures),
    h("nav.tabs", { "aria-label": "Contents of the namespace" }, TABS.map(([name, title]) =>
      h("a", { href: placeOf(namespace, name), "aria-current": name === chosen && "page" }, title))),
    await view({ namespace, key, query, who, signal, summary, listen }),
  ];
}

function title(namespace) {
  return h("h1", {}, h("a.soft", { href: "#/" }, "Namespaces"), h("span.soft", { "aria-hidden": "true" }, " / "), label(namespace));
}

/** A namespace that the key does not see looks to it like one that does not exist. The first value opens it. */
async function missing(namespace, who, listen, signal) {
  listen(() => dispatchEvent(new HashChangeEvent("hashchange")));
  const { namespaces } = await get("/v1/namespaces", {}, { signal });
  const similar = didYouMean(closest(namespace, namespaces), (name) => `#/n/${encodeURIComponent(name)}`);
  const seesAll = who.namespaces.includes("*");
  const text = seesAll ? "Nothing was ever stored under this name. It appears with its first value:"
    : `This namespace does not exist, or your key may not read it. It may ${who.read_only ? "read" : "read and write"} namespaces that match ${who.namespaces.join(", ")}.`;
  return [title(namespace), h("section.panel", {}, empty(seesAll ? "This namespace does not exist" : "Nothing here for this key", text,
    seesAll && !who.read_only ? python(namespace, 'memory.set("greeting", {"hello": "world"})') : "", similar))];
}

const STATES = { live: "live", lost: "disconnected, trying again …" };

/** One stream of changes for the whole page, whose state `live` shows; returns a function that adds a listener to it. */
function follow(namespace, cursor, signal, live) {
  const listeners = [];
  const stop = watch(namespace, cursor, (change) => { for (const changed of listeners) changed(change); }, (state) => {
    live.classList.toggle("off", !state); // it keeps its room, so that nothing moves
    live.classList.toggle("lost", state === "lost");
    live.textContent = STATES[state] ?? STATES.live;
  });
  signal.addEventListener("abort", stop);
  return (changed) => listeners.push(changed);
}

function keepCurrent(figures, namespace, listen, signal) {
  let timer = 0;
  listen(() => {
    timer ||= setTimeout(async () => {
      timer = 0;
      const summary = await findSummary(namespace, signal).catch(() => null); // the page was left, or the next change shows it
      if (summary) fill(figures, usage(summary));
    }, FIGURES_MS);
  });
}

/** The usage of a namespace; null if there is none that the key may see. */
async function findSummary(namespace, signal) {
  return (await get("/v1/usage", { namespace }, { signal })).namespaces[0] ?? null;
}

function usage(summary) {
  const facts = [
    ["Keys", count(summary.keys)], ["Notes", count(summary.notes)],
    ["Stored", limited(summary.bytes, summary.max_bytes, size), bar(summary.bytes, summary.max_bytes, "bytes")],
    ["Writes today", limited(summary.writes_today, summary.writes_per_day, count), bar(summary.writes_today, summary.writes_per_day, "writes today")],
    ["Last change", ago(summary.changed_at)],
  ];
  return facts.map(([name, value, meter]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, meter)));
}
