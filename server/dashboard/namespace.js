// One namespace: its usage, and a tab for each kind of content.

import { cursorOf, get, watch } from "./api.js";
import { ago, count, fill, h, label, size } from "./dom.js";
import { bar } from "./ui.js";
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

export async function namespaceView({ parts, query, who, signal }) {
  const [, namespace, tab, key = null] = parts;
  const cursor = await cursorOf(namespace, signal); // before anything is read, so that no change is missed
  const summary = await findSummary(namespace, signal);
  const figures = h("dl.facts.compact", {}, usage(summary));
  const listen = follow(namespace, cursor, signal);
  keepCurrent(figures, namespace, listen, signal);
  const chosen = tab ?? (summary.has_conversation ? "chats" : summary.notes && !summary.keys ? "notes" : "items");
  const view = (TABS.find(([name]) => name === chosen) ?? TABS[1])[2];
  return [
    h("div.row", {},
      h("h1", {}, h("a.soft", { href: "#/" }, "Namespaces"), h("span.soft", { "aria-hidden": "true" }, " / "), label(namespace)),
      h("span.grow", {}), figures),
    h("nav.tabs", { "aria-label": "Contents of the namespace" }, TABS.map(([name, title]) =>
      h("a", { href: placeOf(namespace, name), "aria-current": name === chosen && "page" }, title))),
    await view({ namespace, key, query, who, signal, summary, listen }),
  ];
}

/** One stream of changes for the whole page; returns a function that adds a listener to it. */
function follow(namespace, cursor, signal) {
  const listeners = [];
  const stop = watch(namespace, cursor, (change) => { for (const { changed } of listeners) changed(change); },
    (isLive) => { for (const { live } of listeners) live?.(isLive); });
  signal.addEventListener("abort", stop);
  return (changed, live = null) => listeners.push({ changed, live });
}

function keepCurrent(figures, namespace, listen, signal) {
  let timer = 0;
  listen(() => {
    timer ||= setTimeout(async () => {
      timer = 0;
      const summary = await findSummary(namespace, signal).catch(() => null); // left, or the next change shows it
      if (summary) fill(figures, usage(summary));
    }, FIGURES_MS);
  });
}

async function findSummary(namespace, signal) {
  const found = await get("/v1/usage", { namespace }, { signal });
  return found.namespaces[0] ?? {
    namespace, keys: 0, notes: 0, bytes: 0, max_bytes: 0, writes_today: 0, writes_per_day: 0, changed_at: null, has_conversation: false,
  };
}

function usage(summary) {
  const limited = (used, limit, format) => [format(used), limit ? h("small", {}, ` of ${format(limit)}`) : null];
  const facts = [
    ["Keys", count(summary.keys)], ["Notes", count(summary.notes)],
    ["Stored", limited(summary.bytes, summary.max_bytes, size), bar(summary.bytes, summary.max_bytes, "bytes")],
    ["Writes today", limited(summary.writes_today, summary.writes_per_day, count), bar(summary.writes_today, summary.writes_per_day, "writes today")],
    ["Last change", ago(summary.changed_at)],
  ];
  return facts.map(([name, value, meter]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, meter)));
}
