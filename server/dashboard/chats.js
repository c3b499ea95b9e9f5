// Conversations: the lists of messages of a namespace, read as chats, live.

import { at, get, parseExactly, send } from "./api.js";
import { ago, avatar, clock, cut, dayOf, fill, h, hueOf, label, longText, plural, visible } from "./dom.js";
import { attempt, button, download, empty, load, python, searchBox } from "./ui.js";
import { erasePerson } from "./erase.js";
import { placeOf, sessionOf } from "./namespace.js";

const PAGE = 60;
const BEFORE = 10; // messages that are shown before one that a search has found
const SESSIONS = 100, MOST_SESSIONS = 1000; // conversations in the list at first, and at most
const FOUND = 50; // results of a search over all conversations

export function chatsView(context) {
  const { key, listen, query } = context;
  const list = h("section.panel", { "aria-label": "Conversations" });
  const open = key === null ? null : h("section.panel.chat", { "aria-label": "Chat" });
  const chat = open && new Chat(open, context);
  let wanted = query.get("search") ?? "";
  let most = SESSIONS;
  const more = () => { most = MOST_SESSIONS; return draw(); };
  const draw = () => load(list, () => (wanted ? drawFound(context, wanted) : drawSessions(context, most, more)));
  const search = searchBox("Search all conversations", wanted, (text) => { wanted = text.trim(); draw(); }, { class: "grow" });
  draw();
  if (chat) load(open, () => chat.start());
  let timer = 0;
  listen((change) => {
    clearTimeout(timer);
    timer = setTimeout(draw, 300);
    if (chat && (change.key === key || change.key === "")) attempt(() => (["append", undefined].includes(change.verb) ? chat.grow() : chat.open()));
  });
  return h("div.stack", {}, h(open ? "div.row.wide-only" : "div.row", {}, search), h(open ? "div.split.open" : "div.split", {}, list, open));
}

/** The messages of all conversations that fit a search best; each opens its conversation there. */
async function drawFound({ namespace, signal }, wanted) {
  const [found, chats] = await Promise.all([
    send("POST", at(namespace, "search"), { body: { query: wanted, limit: FOUND }, signal }),
    get(at(namespace, "conversations"), { limit: 1000 }, { signal }),
  ]);
  const sessions = new Map(chats.conversations.map((each) => [each.key, each.session]));
  const messages = found.matches.filter((each) => each.position !== null && sessions.has(each.key));
  if (!messages.length) return empty("No message fits", "Search with other words, or clear the search to see all conversations.");
  return h("ul.list", {}, messages.map((each) => h("li", {}, h("a", {
    href: `${placeOf(namespace, "chats", each.key)}?${new URLSearchParams({ search: wanted, message: each.position })}`,
  },
  h("div.row", {}, h("span.name.grow", {}, label(sessions.get(each.key), 60)), h("span.soft.small", {}, `#${each.position}`)),
  h("span.preview", {}, cut(visible(textOf(each.value)), 160))))));
}

/** A stored message as one line: who said it, and its text or the tools that it calls. */
function textOf(value) {
  const message = value?.message ?? value;
  const calls = (message?.tool_calls ?? []).map((call) => call.function?.name ?? call.name).filter(Boolean).join(", ");
  const text = message?.content || calls || message;
  const sender = value?.sender ?? message?.name ?? message?.role;
  return `${typeof sender === "string" ? `${sender}: ` : ""}${typeof text === "string" ? text : JSON.stringify(text)}`;
}

async function drawSessions({ namespace, key, signal }, most, more) {
  const found = await get(at(namespace, "conversations"), { limit: most }, { signal });
  if (!found.conversations.length) return noChats(namespace);
  const list = h("ul.list", {}, found.conversations.map((each) => h("li", {}, h("a", {
    class: "with-avatar", href: placeOf(namespace, "chats", each.key), "aria-current": each.key === key && "true",
  },
  avatar(each.session), h("div", {},
    h("div.row", {}, h("span.name.grow", {}, label(each.session, 60)), h("span.soft.small", {}, ago(each.updated_at))),
    h("span.preview", {}, cut(visible(each.preview), 160) || "–"),
    h("div.row.small.soft", {}, plural(each.messages, "message"), h("span", {}, label(each.participants.join(", "), 80))))))));
  if (found.cursor) list.append(h("li.pad", {}, most < MOST_SESSIONS ? button("Show more", more)
    : h("span.soft.small", {}, "These have the latest messages. Search to find the others.")));
  return list;
}

function noChats(namespace) {
  return empty("No conversations yet", "An AutoGen agent that is stored here shows its chats, and so does every list of messages:",
    python(namespace, 'memory.append("chat", {"role": "user", "content": "Hi"})'));
}

/** One conversation, from its end. */
class Chat {
  constructor(place, { namespace, key, who, signal, query }) {
    Object.assign(this, { place, namespace, key, who, signal, messages: [], search: "", isGrowing: null });
    this.found = query.has("message") ? Number(query.get("message")) : null;
    this.session = sessionOf(key);
    this.path = at(namespace, "conversations", key);
    this.log = h("div.messages", { role: "log", tabindex: "0", "aria-label": "Messages", onscroll: () => { this.isAtEnd = this.findAtEnd(); } });
    new ResizeObserver(() => { if (this.isAtEnd) this.log.scrollTop = this.log.scrollHeight; }).observe(this.log);
  }

  async start() {
    await this.open();
    requestAnimationFrame(() => {
      this.log.scrollTop = this.log.scrollHeight;
      const found = this.log.querySelector(".found"); // not by scrollIntoView, which scrolls the page as well
      if (found) this.log.scrollTop = found.offsetTop - this.log.offsetTop - (this.log.clientHeight - found.offsetHeight) / 2;
    });
    return [this.header(), this.log];
  }

  async open() {
    const isAtFound = this.found !== null && !this.search;
    this.messages = await this.page(isAtFound ? { after: Math.max(this.found - BEFORE - 1, -1) } : {});
    this.hasEarlier = isAtFound ? this.found > BEFORE : this.messages.length === PAGE;
    this.hasLater = isAtFound && this.messages.length === PAGE;
    this.draw();
  }

  async page(query) {
    return (await get(this.path, { limit: PAGE, search: this.search, ...query }, { signal: this.signal })).messages;
  }

  /** Load what was added; several changes at once are loaded once. */
  async grow() {
    if (this.search || this.isGrowing || this.hasLater) { this.hasMore = true; return; }
    this.isGrowing = true;
    try {
      do {
        this.hasMore = false;
        const last = this.messages.at(-1)?.position;
        const added = await this.page(last === undefined ? {} : { after: last });
        const isAtEnd = this.findAtEnd();
        this.messages.push(...added);
        this.draw(added.length);
        if (isAtEnd) this.log.scrollTop = this.log.scrollHeight;
        this.hasMore ||= added.length === PAGE;
      } while (this.hasMore);
    } finally {
      this.isGrowing = false;
    }
  }

  findAtEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 80;
  }

  header() {
    const search = searchBox("Search this chat", "", (text) => attempt(async () => {
      this.search = text;
      await this.open();
      this.log.scrollTop = this.log.scrollHeight;
    }));
    return h("header", {},
      h("h2.grow", {}, avatar(this.session), label(this.session, 60)), search,
      button("Markdown", () => this.export("md"), { kind: "plain", title: "Save the whole session as Markdown" }),
      button("JSON", () => this.export("json"), { kind: "plain", title: "Save the whole session as JSON" }),
      !this.who.read_only && button("Erase", () => this.erase(), { kind: "plain danger" }),
      h("a.button", { href: placeOf(this.namespace, "chats"), "aria-label": "Close the chat" }, "Close"));
  }

  draw(fresh = 0) {
    const earlier = this.hasEarlier && button("Earlier messages", async () => {
      const before = this.log.scrollHeight;
      const page = await this.page({ before: this.messages[0].position });
      this.messages.unshift(...page);
      this.hasEarlier = page.length === PAGE;
      this.draw();
      this.log.scrollTop = this.log.scrollHeight - before;
    });
    const later = this.hasLater && button("Later messages", async () => {
      const page = await this.page({ after: this.messages.at(-1).position });
      this.messages.push(...page);
      this.hasLater = page.length === PAGE;
      this.draw();
    });
    const open = new Set([...this.log.querySelectorAll("details[open]")].map((each) => each.dataset.id));
    fill(this.log, earlier, this.messages.length ? [bubbles(this.messages, this.search, fresh, this.found), later]
      : h("p.soft", {}, this.search ? "No message contains this." : "No messages."));
    for (const each of this.log.querySelectorAll("details")) each.open ||= open.has(each.dataset.id);
  }

  /** All messages, from the first. */
  async all() {
    let all = [], page = [];
    do {
      page = (await get(this.path, { limit: PAGE, before: all[0]?.position })).messages;
      all = [...page, ...all];
    } while (page.length === PAGE);
    return all;
  }

  async export(kind) {
    const all = await this.all();
    if (kind === "json") download(`${this.namespace}-${this.session}.json`, "application/json", `${JSON.stringify(all, null, 2)}\n`);
    else download(`${this.namespace}-${this.session}.md`, "text/markdown", markdown(this.session, all));
  }

  async erase() {
    const here = location.hash;
    if (await erasePerson(this.namespace, this.session, this.session) && location.hash === here) location.hash = placeOf(this.namespace, "chats");
  }
}

// ---------------------------------------------------------------- messages

function bubbles(messages, search, fresh, found) {
  const results = resultsByCall(messages);
  const isFolded = folded(messages);
  const made = [];
  let day = "", sender = null;
  messages.forEach((message, i) => {
    if (isFolded(message)) return;
    if (message.time && dayOf(message.time) !== day) {
      day = dayOf(message.time);
      made.push(h("div.day", {}, day));
      sender = null;
    }
    made.push(bubble(message, results, search, {
      isFirst: message.sender !== sender, isNew: i >= messages.length - fresh, isFound: message.position === found,
    }));
    sender = message.sender;
  });
  return made;
}

/** The results of tools by the id of their call. */
function resultsByCall(messages) {
  return new Map(messages.flatMap((message) => message.tool_results.map((result) => [result.id, result])));
}

/** Whether a message has only results that are shown with their calls. */
function folded(messages) {
  const calls = new Set(messages.flatMap((message) => message.tool_calls.map((call) => call.id)));
  return (message) => !message.message && !message.tool_calls.length && message.tool_results.length > 0
    && message.tool_results.every((result) => calls.has(result.id));
}

function bubble(message, results, search, { isFirst, isNew, isFound }) {
  const side = message.role === "user" ? ".user" : message.role === "system" ? ".system" : "";
  const calls = message.tool_calls.map((call) => tool(call, results.get(call.id), search));
  const own = new Set(message.tool_calls.map((call) => call.id));
  const loose = message.tool_results.filter((result) => !own.has(result.id)).map((result) => tool(null, result, search));
  return h(`article.message${side}${isNew ? ".new" : ""}${isFound ? ".found" : ""}`, {},
    isFirst && by(message.sender || message.role, label(message.sender || message.role || "unknown", 60), message.time && h("time", { datetime: message.time, title: new Date(message.time).toLocaleString() }, clock(message.time))),
    message.message && h("div.bubble", { dir: "auto" }, longText(message.message, search)),
    calls, loose);
}

function by(name, ...children) {
  const node = h("div.by", {}, ...children);
  node.style.setProperty("--hue", hueOf(name));
  return node;
}

/** A tool call folded together with its result. */
function tool(call, result, search) {
  const name = call?.name || result?.name || "tool";
  return h("details.tool", { open: Boolean(search), "data-id": call?.id ?? result?.id },
    h("summary", {}, h("b", {}, label(name, 60)),
      call && h("span.preview", {}, cut(visible(JSON.stringify(call.arguments)), 90)),
      !result && h("span.tag.warn", {}, "no result")),
    h("div.body", {},
      call && [h("h3", {}, "Arguments"), h("pre", { tabindex: "0" }, longText(JSON.stringify(call.arguments, null, 2), search))],
      result && [h("h3", {}, "Result"), h("pre", { tabindex: "0" }, longText(indented(result.content), search))]));
}

/** A result that is an object or a list of JSON over several lines, and any other text as it is. */
function indented(text) {
  try { return /^\s*[{[]/.test(text) ? JSON.stringify(parseExactly(text), null, 2) : text; } catch { return text; }
}

/** A conversation as Markdown. */
function markdown(session, messages) {
  const lines = [`# ${session.replace(/\s+/g, " ")}`, ""];
  for (const message of messages) {
    lines.push(`**${message.sender || message.role}**${message.time ? ` · ${message.time}` : ""}`, "");
    if (message.message) lines.push(message.message, "");
    for (const call of message.tool_calls) lines.push(fence(`${call.name} ${JSON.stringify(call.arguments)}`), "");
    for (const result of message.tool_results) lines.push(fence(`→ ${result.content}`), "");
  }
  return lines.join("\n");
}

function fence(text) {
  const ticks = "`".repeat(Math.max(3, ...(text.match(/`+/g) ?? []).map((run) => run.length + 1)));
  return `${ticks}\n${text}\n${ticks}`;
}
