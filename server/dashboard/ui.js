// Parts that several views use.

import { count, fill, h, label, put } from "./dom.js";

/** A short message at the corner of the page. */
export function toast(text, kind = "") {
  const node = h(kind ? `div.toast.${kind}` : "div.toast", {}, text);
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), kind === "error" ? 9000 : 3500);
}

/** Call a function; an error becomes a toast. */
export async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    if (error.name !== "AbortError") toast(error.message, "error");
    return undefined;
  }
}

/** A button that calls a function and is disabled meanwhile. */
export function button(text, action, { kind = "", ...attributes } = {}) {
  const node = h(kind ? `button.${kind.replaceAll(" ", ".")}` : "button", { type: "button", ...attributes }, text);
  node.addEventListener("click", async (event) => {
    node.disabled = true;
    await attempt(() => action(event));
    node.disabled = false;
  });
  return node;
}

/** Text to copy, with a button. */
export function copyable(text, shown = text) {
  const copy = h("button.plain", { type: "button", "aria-label": "Copy" }, "Copy");
  copy.addEventListener("click", async () => {
    await copyText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return h("div.code", {}, h("pre", { tabindex: "0" }, shown), copy);
}

async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h("textarea", { value: text }); // http on another machine: browsers have no clipboard there
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  return undefined;
}

/** What a view shows when there is nothing: what it is for, and what to type. */
export function empty(title, text, code = "", more = null) {
  return h("div.empty", {}, h("h2", {}, title), h("p", {}, text), code && copyable(code), more);
}

/** Names that somebody may have meant, as links: `place(name)` is the address of one. */
export function didYouMean(names, place) {
  return names.length > 0 && h("p", {}, "Did you mean ", names.map((name, i) => [i > 0 && ", ", h("a", { href: place(name) }, label(name, 80))]), "?");
}

/** Lines of Python that work on this server, with its URL in them. */
export function python(namespace, line) {
  const key = document.body.dataset.needsKey ? ', api_key="sj_…"' : "";
  return `from scrubjay import Memory\nmemory = Memory(${JSON.stringify(namespace)}, url="${location.origin}"${key})\n${line}`;
}

export function notice(error) {
  return h("div.alert", { role: "alert" }, error.message);
}

/** What is used, and the limit of it if there is one. */
export function limited(used, limit, format) {
  return [format(used), limit ? h("small", {}, ` of ${format(limit)}`) : null];
}

/** A bar that shows how much of a limit is used. */
export function bar(used, limit, name) {
  const share = limit ? Math.min(used / limit, 1) : 0;
  const fillPart = h("i", {});
  fillPart.style.width = `${share * 100}%`;
  const kind = share >= 1 ? ".full" : share > 0.8 ? ".high" : "";
  const text = `${name}: ${count(used)} of ${count(limit)}`;
  return limit ? h(`div.bar${kind}`, { role: "img", "aria-label": text, title: text }, fillPart) : null;
}

/**
 * A dialog; `build(close)` makes its contents. Resolves with what `close` was given, null when dismissed.
 * One that `stays` is not dismissed by Escape, by another address or by signing out: only its own button closes it.
 */
export function dialog(title, build, { wide = false, stays = false } = {}) {
  return new Promise((resolve) => {
    let result = null;
    const node = h(wide ? "dialog.wide" : "dialog", { "aria-label": title, "data-stays": stays, closedby: stays && "none" });
    const close = (value) => { result = value; node.close(); };
    put(node, h("div.stack", {}, h("h2", {}, title), build(close)));
    node.addEventListener("close", () => { node.remove(); resolve(result); });
    if (stays) node.addEventListener("keydown", (event) => { if (event.key === "Escape") event.preventDefault(); });
    if (stays) node.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(node);
    node.showModal();
  });
}

/** Dismiss the dialogs of a view that is left. */
export function closeDialogs() {
  for (const each of document.querySelectorAll("dialog:not([data-stays])")) each.close();
}

/** Ask before something is deleted; with `typed` the person has to type it. `body` is shown between. Resolves with true or null. */
export function confirmDeletion(title, text, { typed = "", action = "Delete", body = null, wide = false } = {}) {
  return dialog(title, (close) => {
    const sure = h("button.danger.primary", { type: "submit", disabled: Boolean(typed) }, action);
    const input = typed && h("input", {
      autofocus: true, autocomplete: "off", spellcheck: "false", oninput: (event) => { sure.disabled = event.target.value !== typed; },
    });
    return h("form", { onsubmit: (event) => { event.preventDefault(); close(true); } },
      h("p.soft", {}, text), body,
      typed && h("label", {}, h("span", {}, "Type ", h("b", {}, label(typed)), " to confirm"), input),
      h("div.buttons", {}, h("button", { type: "button", onclick: () => close(null) }, "Cancel"), sure));
  }, { wide });
}

/** A table whose words are not broken: where it is wider than its place it scrolls, and a line above says so. */
export function wideTable(name, table) {
  const hint = h("p.sideways", { hidden: true }, "Scroll sideways to see all columns →");
  const area = h("div.scroll.whole", { role: "group", tabindex: "0", "aria-label": name }, table);
  new ResizeObserver(() => { hint.hidden = area.scrollWidth <= area.clientWidth; }).observe(area);
  return [hint, area];
}

/** Search as the person types: calls `found` a moment after the last key. */
export function searchBox(name, value, found, attributes = {}) {
  let timer = 0;
  const input = h("input", { type: "search", placeholder: name, "aria-label": name, value, ...attributes });
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => found(input.value), 200); });
  return input;
}

/** Save text as a file. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name.replace(/[^\w.-]+/g, "-") }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const loads = new WeakMap(); // what is loaded into a place, and what is to be loaded next

/**
 * Load something into a place: shows an error there if that fails, and nothing if the place is gone. Called again meanwhile,
 * it loads the latest of these calls afterwards, so that an older response never replaces a newer one. Resolves when all is shown.
 */
export function load(place, action) {
  let current = loads.get(place);
  if (current) {
    current.next = action;
  } else {
    current = { next: action };
    loads.set(place, current);
    current.done = loadEach(place, current);
  }
  return current.done;
}

async function loadEach(place, current) {
  place.setAttribute("aria-busy", "true");
  while (current.next) {
    const action = current.next;
    current.next = null;
    try {
      const made = await action();
      if (made !== undefined) replace(place, made);
    } catch (error) {
      if (error.name !== "AbortError") fill(place, h("div.pad", {}, notice(error)));
    }
  }
  place.removeAttribute("aria-busy");
  loads.delete(place);
}

/** Fill a place, and keep where the person is in it: the link that has the focus, and how far a list is scrolled. */
function replace(place, made) {
  const link = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const top = place.querySelector(".list")?.scrollTop ?? 0;
  fill(place, made);
  if (link) place.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
  const list = place.querySelector(".list");
  if (list && top) list.scrollTop = top;
}
