// JSON as a tree that folds. Children are built when they are opened, so that a large value opens at once.

import { count, cut, h, longText, plural, visible } from "./dom.js";

const PAGE = 200;
const OPEN_LEVELS = 2;

/** A JSON value as a tree. */
export function tree(value) {
  return h("div.tree", {}, node(null, value, 0));
}

function node(name, value, level) {
  const isRaw = value && typeof value === "object" && typeof value.rawJSON === "string";
  if (value === null || typeof value !== "object" || isRaw) {
    return h("div.leaf", {}, field(name), leaf(isRaw ? value.rawJSON : value, isRaw));
  }
  const entries = Array.isArray(value) ? value.map((each, i) => [i, each]) : Object.entries(value);
  if (!entries.length) return h("div.leaf", {}, field(name), h("span.count", {}, Array.isArray(value) ? "[]" : "{}"));
  const list = h("ul", {});
  const more = () => {
    const start = list.childElementCount;
    for (const [key, each] of entries.slice(start, start + PAGE)) list.append(h("li", {}, node(key, each, level + 1)));
    if (list.childElementCount < entries.length) {
      const rest = h("li", {}, h("button.link", { onclick: () => { rest.remove(); more(); } },
        `${count(entries.length - list.childElementCount)} more`));
      list.append(rest);
    }
  };
  const isOpen = level < OPEN_LEVELS && entries.length <= 50;
  const details = h("details", { open: isOpen }, h("summary", {}, field(name), h("span.count", {}, summary(value, entries.length))), list);
  if (isOpen) more();
  else details.addEventListener("toggle", more, { once: true });
  return details;
}

function field(name) {
  return name === null ? null : [h("span.field", {}, cut(typeof name === "number" ? String(name) : quoted(name), 500)), ": "];
}

/** A string as JSON has it, its quotes and escapes included. */
function quoted(text) {
  return visible(JSON.stringify(text));
}

function summary(value, length) {
  return Array.isArray(value) ? `[ ${plural(length, "item")} ]` : `{ ${plural(length, "field")} }`;
}

function leaf(value, isRaw) {
  if (isRaw || typeof value === "number") return h("span.number", {}, String(value));
  if (typeof value === "string") return h("span.string", {}, longText(quoted(value)));
  return h("span.word", {}, String(value));
}
