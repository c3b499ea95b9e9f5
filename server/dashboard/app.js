// The frame of the page: which view the address names, the sign-in, and the theme.

import { checkSignIn, get, send } from "./api.js";
import { fill, h, label } from "./dom.js";
import { attempt, button, closeDialogs, notice } from "./ui.js";
import { themeButton } from "./theme-button.js";
import { namespacesView } from "./namespaces.js";
import { namespaceView } from "./namespace.js";
import { activityView } from "./activity.js";
import { keysView } from "./keys.js";

const CHECK_MS = 5000; // how soon an open page notices that its api key was revoked
const main = document.getElementById("main");
const state = { who: null, leave: null, route: 0 };

/** The address after the #: parts of the path, decoded, and the query. */
function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  return { parts, query: new URLSearchParams(query) };
}

function viewFor(parts) {
  if (parts[0] === "n" && parts[1]) return [namespaceView, `${parts[1]} – Scrubjay`, "#/"];
  if (parts[0] === "activity" && state.who.admin) return [activityView, "Activity – Scrubjay", "#/activity"];
  if (parts[0] === "keys" && state.who.admin) return [keysView, "Keys – Scrubjay", "#/keys"];
  return [namespacesView, "Scrubjay", "#/"];
}

async function show() {
  const route = ++state.route;
  state.leave?.abort();
  state.leave = new AbortController();
  const { parts, query } = address();
  const [view, title, section] = viewFor(parts);
  document.title = title;
  drawNavigation(section);
  const made = await attempt(() => view({ parts, query, who: state.who, signal: state.leave.signal }));
  if (!made || route !== state.route) return;
  fill(main, made);
  showCurrentTab();
  main.dataset.address = location.hash;
}

/** On a phone the tabs are wider than the screen: scroll to the one that is open. */
function showCurrentTab() {
  const tab = main.querySelector(".tabs [aria-current]"), tabs = tab?.parentElement;
  if (tab) tabs.scrollLeft = tab.offsetLeft - tabs.offsetLeft - (tabs.clientWidth - tab.offsetWidth) / 2;
}

function drawNavigation(section) {
  const links = [["#/", "Namespaces"], ...(state.who.admin ? [["#/activity", "Activity"], ["#/keys", "Keys"]] : [])];
  fill(document.getElementById("nav"),
    links.map(([href, text]) => h("a", { href, "aria-current": href === section && "page" }, text)),
    h("a", { href: "/docs" }, "API"));
  fill(document.getElementById("account"),
    state.who.needs_key && h("span.wide-only", { title: state.who.namespaces.join(" ") }, label(state.who.name, 30)),
    state.who.read_only && h("span.tag", {}, "reads only"),
    themeButton(),
    state.who.expires_at && button("Sign out", signOut, { kind: "plain" }));
}

// ---------------------------------------------------------------- signing in

async function start() {
  try {
    const who = await get("/v1/sign-in");
    if (who.name === null) { signInForm(); return; }
    state.who = who;
    document.body.dataset.needsKey = state.who.needs_key ? "yes" : "";
    await show();
  } catch (error) {
    if (error.status !== 401) fill(main, notice(error)); // 401 has shown the form: the server answers only its own machine
  }
}

function signInForm(problem = "") {
  state.leave?.abort();
  state.who = null;
  state.route += 1;
  for (const id of ["nav", "account"]) fill(document.getElementById(id));
  closeDialogs();
  const fault = h("div.alert", { role: "alert", hidden: !problem }, problem);
  const key = h("input", { type: "password", id: "api-key", autocomplete: "current-password", required: true, placeholder: "sj_…" });
  const form = h("form.panel", {},
    h("h1", {}, "Sign in"),
    h("p.soft", {}, "This server needs an api key. You see what the key may see."),
    h("input", { type: "text", autocomplete: "username", value: location.host, hidden: true }), // for password managers
    h("label", { for: "api-key" }, "Api key", key), fault,
    h("button.primary", { type: "submit" }, "Sign in"),
    h("p.soft.small", {}, "No key? On the machine that has the server's file: ", h("code", {}, "scrubjay key issue --admin --path FILE"),
      "; with PostgreSQL, --url postgresql://… instead of --path."));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await send("POST", "/v1/sign-in", { headers: { Authorization: `Bearer ${key.value.trim()}` } });
      await start();
    } catch (error) {
      fault.hidden = false;
      fault.textContent = error.status === 401 ? "The server does not know this key, or it was revoked." : error.message;
    }
  });
  fill(main, h("div.sign-in", {}, form));
  key.focus();
}

async function signOut() {
  await send("DELETE", "/v1/sign-in");
  signInForm();
}

document.addEventListener("signed-out", () => {
  if (state.who) signInForm(state.who.needs_key ? "You are signed out: the sign-in has ended, or its key was revoked." : "");
  else if (!document.querySelector(".sign-in")) signInForm();
});
setInterval(() => { if (state.who?.needs_key && !document.hidden) checkSignIn(); }, CHECK_MS);

addEventListener("hashchange", async () => {
  if (!state.who) return;
  closeDialogs();
  await show();
  main.focus({ preventScroll: true });
});
document.getElementById("skip").addEventListener("click", () => main.focus());
start();
