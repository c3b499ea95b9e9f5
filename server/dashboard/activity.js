// Activity over time: charts, and the latest changes and refusals.

import { at, get } from "./api.js";
import { ago, count, h, label, plural, size } from "./dom.js";
import { chart } from "./chart.js";
import { empty, load, wideTable } from "./ui.js";
import { placeOf } from "./namespace.js";

const PERIODS = { hour: ["Last hour", 60, 60], day: ["Last day", 1440, 48], week: ["Last week", 10080, 56], month: ["Last 30 days", 43200, 30] };
const REFRESH_MS = 10_000;
const VERBS = {
  set: "store a value", merge: "change fields of a value", update: "store several values", transaction: "several changes at once",
  touch: "change an expiry", delete: "delete a value", expire: "expired", append: "append to a list", pop: "take from a list", incr: "add to a number",
  remember: "remember a note", forget: "forget a note", clear: "delete everything", clear_items: "delete all values", clear_notes: "forget all notes",
  forget_session: "erase a session", import: "import", erase: "erase the namespace", set_quota: "change limits",
  set_key_quota: "limit an api key", issue_key: "issue an api key", revoke_key: "revoke an api key", rotate_key: "replace an api key",
  sign_in: "sign in", sign_out: "sign out", who: "sign in", get: "read a value", contains: "look for a key", items: "read values", get_many: "read values",
  keys: "list keys", entries: "list keys", find: "find values", tail: "read a list", slice: "read a list", length: "read a list",
  notes: "list notes", labels: "list notes", recall: "recall", inject_context: "recall for a prompt", search: "search", conversations: "list conversations",
  conversation: "read a conversation", changes: "watch", usage: "read usage", namespaces: "list namespaces", overview: "list namespaces",
  activity: "read activity", audit: "read the audit", api_keys: "list api keys", export: "export", backup: "back up", metrics: "read metrics", other: "other requests",
};
const REASONS = {
  unauthenticated: "no valid api key", forbidden: "the key does not allow it", quota_exceeded: "a limit was reached", invalid_input: "the request was wrong",
  value_too_large: "the value was too large",
};

export function activityView({ query, signal }) {
  return [h("h1", {}, "Activity"), body("/v1/activity", "#/activity", query, signal, serverCharts, true)];
}

export function namespaceActivityView({ namespace, query, signal }) {
  return body(at(namespace, "activity"), placeOf(namespace, "activity"), query, signal, namespaceCharts, false);
}

function body(path, place, query, signal, charts, isServer) {
  const period = query.get("period") in PERIODS ? query.get("period") : "day";
  const [, minutes, points] = PERIODS[period];
  const shown = h("div.stack", {});
  const draw = () => load(shown, async () => {
    const found = await get(path, { minutes, points }, { signal });
    return [h("div.charts", {}, charts(found.points).map((each) => h("section.panel.pad", {}, each))), recent(found.recent, isServer)];
  });
  draw();
  const timer = setInterval(() => { if (!document.hidden) draw(); }, REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  return h("div.stack", {}, h("nav.row.periods", { "aria-label": "Period" }, Object.entries(PERIODS).map(([name, [title]]) =>
    h("a.button", { href: `${place}?period=${name}`, "aria-current": name === period && "true" }, title))), shown);
}

function serverCharts(points) {
  const recalls = points.reduce((sum, point) => sum + point.recalls, 0);
  const total = points.reduce((sum, point) => sum + (point.recall_ms ?? 0) * point.recalls, 0);
  const milliseconds = (number) => (number < 1000 ? `${number < 10 ? number.toFixed(1) : Math.round(number)} ms` : `${(number / 1000).toFixed(1)} s`);
  return [
    chart("Requests", points, (point) => point.requests),
    chart("Writes", points, (point) => point.writes),
    chart("Refused", points, (point) => point.refused, { isBad: true }),
    chart("Bytes changed", points, (point) => point.bytes, { format: size }),
    chart("Recalls", points, (point) => point.recalls),
    chart("Recall time", points, (point) => point.max_recall_ms, { format: milliseconds, total: recalls ? `${milliseconds(total / recalls)} on average` : "no recalls" }),
  ];
}

function namespaceCharts(points) {
  return [
    chart("Changes", points, (point) => point.changes),
    chart("Bytes changed", points, (point) => point.bytes, { format: size }),
    chart("Refused", points, (point) => point.refused, { isBad: true }),
  ];
}

function recent(changes, isServer) {
  if (!changes.length) return h("section.panel", {}, empty("Nothing has changed in this period", "Choose a longer one above."));
  return h("section.panel", { "aria-label": "Recent changes" },
    h("header", {}, h("h2.grow", {}, "Recent changes"), h("span.soft.small", {}, `the latest ${plural(changes.length, "entry", "entries")}`)),
    wideTable("Table of recent changes", h("table", {},
      h("thead", {}, h("tr", {}, ["What", isServer && "Namespace", "Key", "By", "Size", "When"].filter(Boolean).map((title) =>
        h(title === "Size" || title === "When" ? "th.number" : "th", { scope: "col", class: title === "Size" && "number wide-only" }, title)))),
      h("tbody", {}, changes.map((change) => row(change, isServer))))));
}

function row(change, isServer) {
  return h("tr", {},
    h("td", { title: change.verb }, VERBS[change.verb] ?? change.verb.replaceAll("_", " "),
      change.refusal && [" ", h("span.tag.bad", {}, `refused${change.times > 1 ? ` ×${count(change.times)}` : ""}: ${REASONS[change.refusal] ?? change.refusal}`)]),
    isServer && h("td", {}, change.namespace ? h("a", { href: placeOf(change.namespace, "activity") }, label(change.namespace, 40)) : h("span.soft", {}, "–")),
    h("td", {}, keyOf(change)), h("td", {}, label(change.who, 40)),
    h("td.number.soft.wide-only", {}, change.bytes ? size(change.bytes) : ""), h("td.number.soft", {}, ago(change.at)));
}

/** The key of a change, as a link to what is stored under it now; of a note the log has only its number. */
function keyOf({ namespace, key, verb, refusal }) {
  if (!key) return h("span.soft", {}, "–");
  if (["remember", "forget"].includes(verb)) return h("a", { href: placeOf(namespace, "notes"), title: key }, "a note");
  return refusal || !namespace ? label(key, 50) : h("a", { href: placeOf(namespace, "items", key) }, label(key, 50));
}
