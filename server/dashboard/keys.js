// Api keys, for administrators: issue, limit, replace and revoke. A key itself is shown once.

import { get, send, withQuery } from "./api.js";
import { ago, count, h, label, size, visible } from "./dom.js";
import { bar, button, confirmDeletion, copyable, dialog, empty, load, toast, wideTable } from "./ui.js";

const LIMITS = [["writes_per_day", "Writes a day"], ["max_bytes", "Bytes"], ["max_namespaces", "Namespaces"]];

export function keysView({ signal }) {
  const panel = h("section.panel", { "aria-label": "Api keys" });
  const draw = () => load(panel, async () => {
    const { apikeys } = await get("/v1/apikeys", {}, { signal });
    if (!apikeys.length) return noKeys();
    return wideTable("Table of api keys", h("table", {},
      h("thead", {}, h("tr", {}, ["Name", "Namespaces", "Rights", "Writes today", "Stored", "Issued", "Change"].map((title) => h(title === "Change" ? "th.right" : "th", { scope: "col" }, title)))),
      h("tbody", {}, apikeys.map((key) => row(key, draw)))));
  });
  draw();
  return [h("div.row", {}, h("h1.grow", {}, "Api keys"), button("Issue a key", () => issue(draw), { kind: "primary" })), panel];
}

function row(key, changed) {
  return h("tr", {},
    h("td", {}, h("span.name", {}, label(key.name, 60)), h("div.small.soft.mono", {}, key.id)),
    h("td", {}, key.namespaces.map((pattern) => [h("span.tag.mono", {}, label(pattern, 60)), " "])),
    h("td", {}, h(key.admin ? "span.tag.accent" : "span.tag", {}, key.admin ? "administer" : key.read_only ? "read" : "read and write")),
    h("td", {}, count(key.writes_today), bar(key.writes_today, key.writes_per_day ?? 0, "writes today")),
    h("td", {}, size(key.bytes), bar(key.bytes, key.max_bytes ?? 0, "bytes")),
    h("td.soft", {}, ago(key.created_at)),
    h("td.nowrap.right", {},
      !key.admin && button("Limits", () => limit(key, changed), { kind: "plain" }),
      button("Replace", () => rotate(key), { kind: "plain", title: "A new key with the same id and rights; the old one ends at once" }),
      button("Revoke", () => revoke(key, changed), { kind: "plain danger" })));
}

async function revoke(key, changed) {
  const forget = h("input", { type: "checkbox" });
  const body = h("label.check", {}, forget, "Forget its name and its namespaces: in the log, its id takes their place");
  if (!await confirmDeletion(`Revoke “${visible(key.name)}”?`, "Programs and browsers that use it are out at once.", { action: "Revoke", body })) return;
  await end(key, forget.checked);
  toast("Revoked");
  changed();
}

const end = (key, forget) => send("DELETE", withQuery(`/v1/apikeys/${encodeURIComponent(key.id)}`, { forget }));

/** The keys that have the name of an erased namespace, each with a button that revokes it and removes the name. */
export function offerToForget(keys) {
  return dialog("Api keys that have the name", (close) => [
    h("p.soft", {}, "The namespace is erased; these keys have its name among their namespaces or in their own name. Forgotten, they are revoked, and in the log their id takes the place of the name. Then scrubjay compact, on the server's machine, clears copies in the free space of a file."),
    keys.map((key) => h("div.row", {}, h("span.grow", {}, label(key.name, 60), " ", h("span.soft.mono", {}, key.id), key.is_revoked && " is revoked"),
      button("Revoke and forget", async (event) => {
        const pressed = event.currentTarget;
        await end(key, true);
        pressed.replaceWith(h("span.soft", {}, "Forgotten"));
      }, { kind: "danger" }))),
    h("div.buttons", {}, h("button.primary", { type: "button", onclick: () => close(true) }, "Done")),
  ]);
}

async function rotate(key) {
  const sure = await confirmDeletion(`Replace “${key.name}”?`, "Programs and browsers that use the old key are out at once.", { action: "Replace" });
  if (sure) await showOnce(await send("POST", `/v1/apikeys/${encodeURIComponent(key.id)}/rotate`));
}

async function limit(key, changed) {
  const inputs = LIMITS.map(([name, title]) => [name, title, h("input", { inputmode: "numeric", pattern: "[0-9]*", value: key[name] ?? "" })]);
  const saved = await dialog(`Limits of “${key.name}”`, (close) => h("form", { onsubmit: async (event) => {
    event.preventDefault();
    const body = Object.fromEntries(inputs.map(([name, , input]) => [name, input.value === "" ? null : Number(input.value)]));
    try { close(await send("PATCH", `/v1/apikeys/${encodeURIComponent(key.id)}`, { body })); } catch (error) { toast(error.message, "error"); }
  } }, h("p.soft", {}, "Over all namespaces of the key. Empty is the server's default, 0 means no limit."),
  inputs.map(([, title, input]) => h("label", {}, title, input)),
  h("div.buttons", {}, h("button", { type: "button", onclick: () => close(null) }, "Cancel"), h("button.primary", { type: "submit" }, "Save"))));
  if (saved) changed();
}

/** The key itself, for the only time. */
function showOnce(issued) {
  return dialog(issued.admin_key ? "Two keys, shown only now" : "The key, shown only now", (close) => [
    issued.admin_key && h("h3", {}, "Key for the program"), copyable(issued.key),
    h("p.soft", {}, "Give it to a program as SCRUBJAY_API_KEY. The server stores only its hash."),
    issued.admin_key && [h("h3", {}, "Admin key: keep it"), copyable(issued.admin_key)],
    issued.first && h("p.soft", {}, "From now on every request needs a key, and every namespace has the server's quota. ",
      issued.admin_key ? "Sign in here with the admin key." : "Sign in here with this key."),
    h("div.buttons", {}, h("button.primary", { onclick: () => close(true) }, issued.admin_key ? "I have copied both" : "I have copied it")),
  ], { stays: true });
}

function noKeys() {
  return empty("No api keys", "Every program of this machine may read and write. From the first key on, each request needs one and every namespace has a quota; an admin key comes with it.");
}

async function issue(changed) {
  const name = h("input", { required: true, autocomplete: "off", placeholder: "support bot" });
  const patterns = h("input", { value: "*", autocomplete: "off" });
  const exact = h("input", { type: "checkbox", onchange: () => { if (exact.checked && patterns.value === "*") patterns.value = ""; } });
  const may = h("select", {}, h("option", { value: "write" }, "Read and write"), h("option", { value: "read" }, "Only read"), h("option", { value: "admin" }, "Administer the server"));
  const issued = await dialog("Issue an api key", (close) => {
    const fault = h("div.alert", { role: "alert", hidden: true });
    return h("form", { onsubmit: async (event) => {
      event.preventDefault();
      const namespaces = exact.checked ? [patterns.value] : patterns.value.split(",").map((each) => each.trim()).filter(Boolean);
      const isAdmin = may.value === "admin";
      const body = { name: name.value, namespaces: isAdmin ? ["*"] : namespaces, read_only: may.value === "read", admin: isAdmin, exact: exact.checked && !isAdmin };
      try { close(await send("POST", "/v1/apikeys", { body })); } catch (error) { fault.hidden = false; fault.textContent = error.message; }
    } }, h("label", {}, "Name, which the log of changes shows", name),
    h("label", {}, "It may", may), h("label", {}, "Namespaces, as patterns: support-*, team-1", patterns),
    h("label.check", {}, exact, "One exact name, in which * and commas mean themselves"), fault,
    h("div.buttons", {}, h("button", { type: "button", onclick: () => close(null) }, "Cancel"), h("button.primary", { type: "submit" }, "Issue")));
  });
  if (!issued) return;
  await showOnce(issued);
  changed();
}
