// All namespaces: searched, sorted and paged by the server.

import { get } from "./api.js";
import { ago, count, fill, h, label, plural, size } from "./dom.js";
import { bar, button, empty, limited, load, python, searchBox } from "./ui.js";

const PAGE = 50;
const COLUMNS = [
  ["name", "Namespace", ""], ["keys", "Keys", "number wide-only"], ["notes", "Notes", "number wide-only"],
  ["bytes", "Size", "number"], ["writes", "Writes today", "number wide-only"], ["changed", "Last change", "number"],
];

export function namespacesView({ query, who, signal }) {
  const shown = {
    search: query.get("search") ?? "", sort: query.get("sort") ?? "changed", reverse: query.get("reverse") !== "false", offset: 0,
  };
  const facts = h("dl.facts", {}), body = h("tbody", {}), head = h("tr", {}), foot = h("div.pad.row", {});
  const panel = h("section.panel", { "aria-label": "Namespaces" });
  const table = h("div.scroll", {}, h("table", {}, h("thead", {}, head), body));

  const refresh = (more = false) => load(more ? foot : panel, async () => {
    shown.offset = more ? body.childElementCount : 0;
    const found = await get("/v1/usage", { ...shown, limit: PAGE }, { signal });
    drawFacts(facts, found.totals, shown.search);
    if (!found.totals.namespaces) return shown.search ? nothingFound(shown.search) : firstSteps(who);
    drawHead();
    if (!more) fill(body);
    body.append(...found.namespaces.map(row));
    const left = found.totals.namespaces - body.childElementCount;
    fill(foot, h("span.soft.small.grow", {}, `${count(body.childElementCount)} of ${plural(found.totals.namespaces, "namespace")}`),
      left > 0 && button(`Show ${Math.min(left, PAGE)} more`, () => refresh(true)));
    return more ? undefined : [table, foot];
  });

  function drawHead() {
    fill(head, COLUMNS.map(([sort, title, kind]) => h("th", {
      scope: "col", class: kind, "aria-sort": shown.sort === sort && (shown.reverse ? "descending" : "ascending"),
    }, h("button", { onclick: () => {
      shown.reverse = shown.sort === sort ? !shown.reverse : sort !== "name";
      shown.sort = sort;
      refresh();
    } }, title))));
  }

  refresh();
  const box = searchBox("Search namespaces", shown.search, (text) => { shown.search = text; refresh(); });
  return [h("div.row.title", {}, h("h1.grow", {}, "Namespaces"), box), facts, panel];
}

function row(each) {
  const place = `#/n/${encodeURIComponent(each.namespace)}`;
  return h("tr", {},
    h("td", {}, h("a.name", { href: place }, label(each.namespace, 80)),
      each.has_conversation && [" ", h("a.tag.accent", { href: `${place}/chats` }, "chat")]),
    h("td.number.wide-only", {}, count(each.keys)),
    h("td.number.wide-only", {}, count(each.notes)),
    h("td.number", {}, limited(each.bytes, each.max_bytes, size), bar(each.bytes, each.max_bytes, "bytes")),
    h("td.number.wide-only", {}, limited(each.writes_today, each.writes_per_day, count), bar(each.writes_today, each.writes_per_day, "writes today")),
    h("td.number.soft", {}, ago(each.changed_at)));
}

function drawFacts(place, totals, search) {
  const facts = [[search ? "Namespaces found" : "Namespaces", count(totals.namespaces)], ["Keys", count(totals.keys)],
    ["Notes", count(totals.notes)], ["Stored", size(totals.bytes)]];
  fill(place, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function nothingFound(search) {
  return empty("No namespace has this in its name", `Nothing matches “${search}”. Only namespaces that your key may see are searched.`);
}

function firstSteps(who) {
  if (who.read_only || !who.namespaces.includes("*")) return nothingToSee(who);
  return empty("Nothing is stored yet", "A namespace appears with its first value. Try it from Python:",
    python("my-agent", 'memory.set("greeting", {"hello": "world"})'));
}

function nothingToSee({ namespaces, read_only }) {
  const which = namespaces.includes("*") ? "all namespaces" : `namespaces that match ${namespaces.join(", ")}`;
  return empty("Nothing that your key may see is stored", `It may ${read_only ? "only read" : "read and write"} ${which}.`);
}
