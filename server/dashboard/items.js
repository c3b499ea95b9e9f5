// Values and lists: browsed by prefix, shown as a tree, edited with a version check.

import { at, get, send } from "./api.js";
import { ago, closest, count, cut, fill, h, label, plural, size, visible } from "./dom.js";
import { attempt, button, confirmDeletion, dialog, didYouMean, empty, load, python, searchBox, toast } from "./ui.js";
import { placeOf } from "./namespace.js";
import { tree } from "./tree.js";

const PAGE = 100;
const LIST_PAGE = 50;
const LARGE = 300_000; // bytes of a value that is shown as text first: a tree of it takes the browser seconds

export function itemsView(context) {
  const { namespace, key, who, listen } = context;
  const list = h("section.panel", { "aria-label": "Keys" });
  const open = key === null ? null : h("section.panel", { "aria-label": "Value" });
  const refresh = drawList(list, context);
  const reload = () => load(open, () => drawItem(context, reload));
  if (open) reload();
  let timer = 0;
  listen((change) => {
    clearTimeout(timer);
    timer = setTimeout(refresh, 150);
    if (open && (change.key === key || change.key === "")) reload();
  });
  const add = !who.read_only && button("New value", () => create(namespace));
  return h("div.stack", {},
    h("div.row", {}, searchBox("Keys that start with …", context.query.get("prefix") ?? "", (text) => refresh(text), { class: "grow" }), add),
    h(open ? "div.split.open" : "div.split", {}, list, open));
}

function drawList(place, { namespace, key, query, signal }) {
  let prefix = query.get("prefix") ?? "";
  let pages = 1;
  const draw = async (newPrefix = prefix) => {
    if (newPrefix !== prefix) pages = 1;
    prefix = newPrefix;
    await load(place, async () => {
      const found = await get(at(namespace, "entries"), { prefix, limit: PAGE * pages }, { signal });
      if (!found.entries.length) return prefix ? nothingStarts(namespace, key, prefix, signal) : firstValue(namespace);
      const more = found.entries.length === PAGE * pages;
      return [table(namespace, key, found.entries),
        more && h("div.pad", {}, button("Show more", () => { pages *= 2; return draw(); }))];
    });
  };
  draw();
  return draw;
}

function table(namespace, openKey, entries) {
  const isOpen = openKey !== null;
  return h("div.scroll", {}, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Key"), h("th.number.wide-only", { scope: "col" }, "Size"),
      !isOpen && h("th.number", { scope: "col" }, "Changed"))),
    h("tbody", {}, entries.map((entry) => h(entry.key === openKey ? "tr.open" : "tr", {},
      h("td", {},
        h("a.name", { href: placeOf(namespace, "items", entry.key), "aria-current": entry.key === openKey && "true" }, label(entry.key, isOpen ? 60 : 90)),
        entry.length !== null && [" ", h("span.tag", {}, plural(entry.length, "item"))],
        entry.expires_at && [" ", h("span.tag.warn", {}, "expires ", ago(entry.expires_at))],
        entry.preview && h("span.preview", {}, cut(visible(entry.preview), 200))),
      h("td.number.soft.wide-only", {}, size(entry.bytes)),
      !isOpen && h("td.number.soft", {}, ago(entry.updated_at)))))));
}

/** The keys that have the text elsewhere, or else those that are most like it. */
async function nothingStarts(namespace, openKey, text, signal) {
  const { entries } = await get(at(namespace, "entries"), { search: text, limit: PAGE }, { signal });
  if (!entries.length) return empty("No key starts with this", `Nor does a key contain “${visible(text)}”.`, "", await similar(namespace, text, signal));
  return [h("p.pad.soft.small", {}, `No key starts with “${visible(text)}”. These contain it:`), table(namespace, openKey, entries)];
}

/** Keys that somebody may have meant, of the first thousands. */
async function similar(namespace, key, signal) {
  const { keys } = await get(at(namespace, "items"), { limit: 10_000 }, { signal });
  return didYouMean(closest(key, keys), (each) => placeOf(namespace, "items", each));
}

function firstValue(namespace) {
  return empty("No values in this namespace", "Store one from Python; it appears here at once:",
    python(namespace, 'memory.set("user", {"name": "Sarah"})'));
}

// ---------------------------------------------------------------- one item

/** The value that is open; `reload` shows it as it is now. */
async function drawItem(context, reload) {
  const { namespace, key, signal, who } = context;
  const path = at(namespace, "items", key);
  const entry = (await get(at(namespace, "entries"), { prefix: key, limit: 1 }, { signal })).entries[0];
  if (entry?.key !== key) {
    return [h("header.opened", {}, h("h2.grow", {}, label(key)), back(namespace)),
      empty("There is no such key", "It was never stored, was deleted, or has expired.", "", await similar(namespace, key, signal))];
  }
  const isList = entry.length !== null;
  const body = h("div.pad", {});
  const item = isList ? null : await get(path, {}, { signal, exact: true });
  if (isList) drawPages(body, context, entry.length);
  else if (entry.bytes > LARGE) drawLarge(body, item.value);
  else fill(body, tree(item.value));
  const edit = !isList && !who.read_only && button("Edit", () => editItem(namespace, key, item, reload));
  return [
    h("header.opened", {}, h("h2.grow", {}, label(key)), edit, !who.read_only && button("Delete", () => remove(namespace, entry), { kind: "danger" }), back(namespace)),
    h("div.pad.row.small.soft", {}, h("span", {}, `version ${entry.version}`), h("span", {}, size(entry.bytes)),
      isList && h("span", {}, plural(entry.length, "item")), h("span", {}, "changed ", ago(entry.updated_at)),
      entry.expires_at && h("span.tag.warn", {}, "expires ", ago(entry.expires_at))),
    body,
  ];
}

function back(namespace) {
  return h("a.button", { href: placeOf(namespace, "items"), "aria-label": "Close the value" }, "Close");
}

function drawLarge(place, value) {
  const text = JSON.stringify(value);
  fill(place, h("p.soft", {}, `This value has ${count(text.length)} characters. `, button("Show as a tree", () => { fill(place, tree(value)); })),
    h("pre", {}, `${visible(text.slice(0, 20_000))}…`));
}

/** A list from its end, page by page. */
async function drawPages(place, { namespace, key, signal }, length) {
  const list = h("ol.list", { start: 0 });
  const more = h("div", {});
  let first = length;
  const draw = async () => {
    const start = Math.max(first - LIST_PAGE, 0);
    const { items } = await get(at(namespace, "slices", key), { start, stop: first }, { signal, exact: true });
    list.prepend(...items.map((value, i) => h("li", {}, h("span.tag", {}, `#${start + i}`), tree(value))));
    first = start;
    fill(more, first > 0 && button(`Show ${Math.min(first, LIST_PAGE)} earlier of ${count(first)}`, draw));
  };
  fill(place, more, list);
  await attempt(draw);
  list.scrollTop = list.scrollHeight;
}

// ---------------------------------------------------------------- changes

async function create(namespace) {
  const key = await dialog("New value", (close) => {
    const name = h("input", { required: true, autocomplete: "off" });
    const area = h("textarea", { value: "{}", spellcheck: "false" });
    const expiry = expiryField(null);
    return editor(close, [h("label", {}, "Key", name), h("label", {}, "Value, as JSON", area), expiry.node], area, async () => {
      await send("PUT", at(namespace, "items", name.value), { text: bodyOf(area.value, expiry.seconds()), headers: { "If-None-Match": "*" } })
        .catch((error) => { throw error.status === 412 ? new Error("This key exists already. Choose another one, or edit its value.") : error; });
      return name.value;
    });
  });
  if (key) location.hash = placeOf(namespace, "items", key);
}

/** Edit a value. The dialog closes when the page has the version that was saved, so that the next edit starts from it. */
async function editItem(namespace, key, item, reload) {
  const area = h("textarea", { value: JSON.stringify(item.value, null, 2), spellcheck: "false", rows: 18, "aria-label": "Value, as JSON" });
  let stored = item;
  const expiry = expiryField(item.expires_at);
  const replace = async () => {
    await send("PUT", at(namespace, "items", key), {
      text: bodyOf(area.value, expiry.seconds(stored)), headers: { "If-Match": `"${stored.version}"` },
    });
    await reload();
    return true;
  };
  const done = await dialog("Edit", (close) => editor(close, [h("p.soft.small", {}, label(key)), area, expiry.node], area, async () => {
    try {
      return await replace();
    } catch (error) {
      if (error.status !== 412) throw error;
      stored = await get(at(namespace, "items", key), {}, { exact: true });
      const choice = await conflict(stored, area.value);
      if (choice === "theirs") return false;
      if (choice !== "mine") return null; // goes on editing, over the version that is stored now
      return replace();
    }
  }), { wide: true });
  if (done) toast("Saved");
}

function bodyOf(text, seconds) {
  return `{"value":${text}${seconds === null ? "" : `,"ttl":${seconds}`}}`;
}

/**
 * A field for the time at which a value expires. `seconds(stored)` is how long that is from now, null for never;
 * as long as nobody has changed the field, it is that of the value that is stored.
 */
function expiryField(expiresAt) {
  const local = (time) => new Date(time - new Date(time).getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
  const input = h("input", { type: "datetime-local", step: 1, value: expiresAt ? local(Date.parse(expiresAt)) : "" });
  const first = input.value; // browsers leave out seconds that are zero
  const choose = (text, seconds) => h("button.link", { type: "button", onclick: () => { input.value = seconds ? local(Date.now() + seconds * 1000) : ""; } }, text);
  const seconds = (stored = null) => {
    const at = input.value === first ? stored?.expires_at ?? null : input.value || null;
    if (at === null) return null;
    const left = (Date.parse(at) - Date.now()) / 1000;
    if (left <= 0 && input.value !== first) throw new Error("The time of expiry has passed. Choose a later one, or none.");
    return Math.max(left, 0.001);
  };
  return { node: h("div.row.small", {}, h("label", {}, "Expires at; empty is never", input),
    h("span.row.quick", {}, choose("in an hour", 3600), choose("in a day", 86_400), choose("in a week", 604_800), choose("never", 0))), seconds };
}

/** A form around a text area of JSON; `save` resolves with the result of the dialog, null to stay open. */
function editor(close, parts, area, save) {
  const fault = h("div.alert", { role: "alert", hidden: true });
  return h("form", { onsubmit: async (event) => {
    event.preventDefault();
    fault.hidden = true;
    try {
      if (JSON.parse(area.value) === null) throw new Error("null deletes a key and is not stored. To delete this key, use Delete.");
      const result = await save();
      if (result !== null) close(result);
    } catch (error) {
      fault.hidden = false;
      fault.textContent = error instanceof SyntaxError ? `This is not JSON: ${error.message}` : error.message;
    }
  } }, parts, fault, h("div.buttons", {},
    h("button", { type: "button", onclick: () => close(null) }, "Cancel"), h("button.primary", { type: "submit" }, "Save")));
}

/** Both versions side by side. Resolves with "theirs", "mine" or null. */
function conflict(theirs, mine) {
  return dialog("The value was changed meanwhile", (close) => [
    h("p.soft", {}, `It is at version ${theirs.version} now. Compare, and choose which one stays.`),
    h("div.fields", {},
      h("div.stack", {}, h("h3", {}, `Stored now (version ${theirs.version})`), h("pre.code", { tabindex: "0" }, visible(JSON.stringify(theirs.value, null, 2)))),
      h("div.stack", {}, h("h3", {}, "Your edit"), h("pre.code", { tabindex: "0" }, visible(mine)))),
    h("div.buttons", {},
      button("Keep the stored one", () => close("theirs")),
      button("Go on editing", () => close(null)),
      button("Overwrite with mine", () => close("mine"), { kind: "danger primary" })),
  ], { wide: true });
}

async function remove(namespace, entry) {
  if (!await confirmDeletion("Delete this value?", "It cannot be brought back.")) return;
  await send("DELETE", at(namespace, "items", entry.key), { headers: { "If-Match": `"${entry.version}"` } });
  toast("Deleted");
  location.hash = placeOf(namespace, "items");
}
