// Building the page. All text goes through text nodes, so nothing that is stored can become markup.

/** An element: h("a.name", {href: "#/"}, "text", otherElement). Classes follow the tag; `on…` are listeners. */
export function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  set(node, attributes);
  return put(node, ...children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(node, attributes);
  return put(node, ...children);
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
}

/** Append children: elements, texts, or arrays of them; null and false are left out. */
export function put(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

/** Replace the children of an element. */
export function fill(node, ...children) {
  node.replaceChildren();
  return put(node, ...children);
}

// What cannot be seen, or changes what is seen around it: control characters, Unicode's default-ignorable characters (joiners,
// directions, variation selectors, tags), line separators and lone surrogates. Line breaks and tabs stay.
// client/scrubjay/cli/visible.py has the same rule for the command.
const INVISIBLE = String.raw`\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e`
  + String.raw`\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}`;
// Scripts in which a joiner changes the shape of a letter: from Hebrew and Arabic to Myanmar, Khmer to Vedic, and others.
const JOINING = String.raw`\u0590-\u109f\u1780-\u18af\u1900-\u1cff\ua800-\uabff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{11fff}\u{1e900}-\u{1e95f}`;
const EMOJI = String.raw`\u2100-\u2bff\u{1f000}-\u{1faff}`;
const HAN = String.raw`\u3400-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}`;
const SELECTABLE = String.raw`${JOINING}${EMOJI}${HAN}\u00a9\u00ae\u203c\u2049\u3030\u303d\u3297\u3299`;
// Where an invisible character is part of a word or of an emoji. A second one after it is not.
const PARTS = [
  String.raw`(?<=[${JOINING}])\u200c(?=[${JOINING}\p{L}\p{N}])`,
  String.raw`(?<=[\p{L}\p{N}])\u200c(?=[${JOINING}])`,
  String.raw`(?<=[${JOINING}])\u200d`,
  String.raw`(?<=[${EMOJI}\ufe0f])\u200d(?=[${EMOJI}])`,
  String.raw`(?<=[${SELECTABLE}])[\ufe00-\ufe0f\u180b-\u180d\u180f\u{e0100}-\u{e01ef}]`,
  String.raw`(?<=[0-9#*])\ufe0f(?=\u20e3)`,
  ...["eng", "sct", "wls"].map((part) => `\u{1f3f4}${[...`gb${part}`].map((letter) => String.fromCodePoint(0xe0000 + letter.codePointAt(0))).join("")}\u{e007f}`),
];
const HIDDEN = new RegExp(`(${PARTS.join("|")})|[${INVISIBLE}]`, "gu");

/** Text whose invisible characters are shown as codes; those that are part of a word or of an emoji stay, as line breaks and tabs do. */
export function visible(text) {
  return String(text).replace(HIDDEN, (found, part) => part ?? [...Array(found.length).keys()].map((i) => code(found.charCodeAt(i))).join(""));
}

const code = (unit) => (unit < 32 ? String.fromCodePoint(0x2400 + unit) : `\\u${unit.toString(16).padStart(4, "0")}`);

/** A name on one line, isolated so that its direction does not reach its surroundings; in quotes if it begins or ends with spaces. */
export function label(text, limit = 200) {
  const name = String(text), isSpaced = name.trim() !== name;
  const shown = visible(isSpaced ? `"${name}"` : name).replace(/\n/g, "␊").replace(/\t/g, "␉");
  return h(isSpaced ? "bdi.spaced" : "bdi", shown.length > limit ? { title: shown.slice(0, 2000) } : {}, cut(shown, limit));
}

export function cut(text, limit) {
  return text.length > limit ? `${text.slice(0, limit)}…` : text;
}

const LONG = 8000;

/** A text that may be very long: its start, and a button for the rest. Marks `search` where it occurs. */
export function longText(text, search = "") {
  const all = visible(text);
  const part = h("span", {}, marked(cut(all, LONG), search));
  if (all.length <= LONG) return part;
  const more = h("button.link", { onclick: () => { fill(part, marked(all, search)); more.remove(); } },
    `Show all ${count(all.length)} characters`);
  return h("span", {}, part, " ", more);
}

function marked(text, search) {
  if (!search) return text;
  const parts = [];
  const lower = text.toLowerCase(), wanted = search.toLowerCase();
  let at = 0;
  for (let i = lower.indexOf(wanted); i >= 0 && parts.length < 400; i = lower.indexOf(wanted, at)) {
    parts.push(text.slice(at, i), h("mark", {}, text.slice(i, i + wanted.length)));
    at = i + wanted.length;
  }
  return [...parts, text.slice(at)];
}

// ---------------------------------------------------------------- names

// A word, or one letter of a script that writes no spaces between its words: there, any letters in a row may be a name.
const SPACELESS = ["Han", "Hiragana", "Katakana", "Bopomofo", "Thai", "Lao", "Khmer", "Myanmar"].map((script) => `\\p{scx=${script}}`).join("");
const WORD = new RegExp(`(?=[\\p{L}\\p{N}])[${SPACELESS}]\\p{M}*|(?:(?![${SPACELESS}])[\\p{L}\\p{M}\\p{N}])+`, "gu");

const wordsOf = (text) => ` ${(text.toLowerCase().normalize("NFC").match(WORD) ?? []).join(" ")} `;

/** Whether a text has a name in it as whole words: "bob" is in "user:bob" and not in "bobby"; "田中" is in "田中さん". */
export function hasWord(text, name) {
  return wordsOf(name).trim() !== "" && wordsOf(text).includes(wordsOf(name));
}

/** Those of the names that are most like one that does not exist, by the pairs of letters that they share. */
export function closest(wanted, names, most = 3) {
  const pairs = (text) => new Set([...text.toLowerCase()].map((letter, i, all) => (all[i - 1] ?? " ") + letter));
  const own = pairs(wanted);
  const fit = (name) => { const other = pairs(name); return (2 * [...own].filter((pair) => other.has(pair)).length) / (own.size + other.size); };
  return names.map((name) => [fit(name), name]).filter(([score]) => score > 0.5).sort(([a], [b]) => b - a).slice(0, most).map(([, name]) => name);
}

/** A colour for a name, always the same: for its initial, and for who speaks in a chat. */
export function hueOf(name) {
  let hash = 7;
  for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) % 360;
  return hash;
}

/** The first letter of a name in a circle of its colour. */
export function avatar(name) {
  const node = h("span.avatar", { "aria-hidden": "true" }, [...visible(name)].find((letter) => /[\p{L}\p{N}]/u.test(letter))?.toUpperCase() ?? "·");
  node.style.setProperty("--hue", hueOf(name));
  return node;
}

// ---------------------------------------------------------------- numbers and times

const WHOLE = new Intl.NumberFormat("en");

export function count(number) {
  return WHOLE.format(number);
}

export function plural(number, word, words = `${word}s`) {
  return `${count(number)} ${number === 1 ? word : words}`;
}

export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = bytes / 1000, unit = 0;
  while (value >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

const STEPS = [["day", 86400], ["hour", 3600], ["minute", 60]];
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });

function relative(date) {
  const seconds = (date - Date.now()) / 1000;
  if (Math.abs(seconds) < 45) return seconds > 5 ? "in seconds" : "just now";
  const [unit, length] = STEPS.find(([, each]) => Math.abs(seconds) >= each * 0.95) || STEPS[2];
  return RELATIVE.format(Math.round(seconds / length), unit);
}

/** A time as people say it, with the exact one as its title. */
export function ago(iso) {
  if (!iso) return h("span.soft", {}, "–");
  const date = new Date(iso);
  const isOld = Math.abs(Date.now() - date) > 30 * 86400e3;
  return h("time.nowrap", { datetime: iso, title: date.toLocaleString() }, isOld ? date.toLocaleDateString() : relative(date));
}

export function clock(iso) {
  return new Date(iso).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
}

export function dayOf(iso) {
  return new Date(iso).toLocaleDateString([], { weekday: "long", year: "numeric", month: "long", day: "numeric" });
}
