// Limits of a namespace, its export, and its end.

import { at, get, send } from "./api.js";
import { count, h, size } from "./dom.js";
import { attempt, button, confirmDeletion, toast } from "./ui.js";
import { erasePerson } from "./erase.js";
import { offerToForget } from "./keys.js";

export function manageView({ namespace, who, summary }) {
  return h("div.stack", {}, limits(namespace, who, summary), copy(namespace), !who.read_only && [person(namespace, who), ending(namespace, who)]);
}

function limits(namespace, who, summary) {
  const writes = limitField("Writes a day", summary.writes_per_day, readCount, "Type a whole number, such as 1000.");
  const bytes = limitField("Bytes", summary.max_bytes, readSize, "Type a number of bytes, or a size such as 50MB.");
  const now = `Now: ${summary.writes_per_day ? `${count(summary.writes_per_day)} writes a day` : "no limit of writes"}, ${summary.max_bytes ? size(summary.max_bytes) : "no limit of storage"}.`;
  const save = button("Save", async () => {
    const [writes_per_day, max_bytes] = [writes.read(), bytes.read()];
    if (writes_per_day === null || max_bytes === null) return;
    await send("PATCH", at(namespace, "quota"), { body: { writes_per_day, max_bytes } });
    toast("Saved");
    dispatchEvent(new HashChangeEvent("hashchange"));
  }, { kind: "primary" });
  const reset = button("Use the server's defaults", async () => {
    await send("PATCH", at(namespace, "quota"), { body: { writes_per_day: null, max_bytes: null } });
    toast("The server's defaults apply");
    dispatchEvent(new HashChangeEvent("hashchange"));
  });
  return h("section.panel", {}, h("header", {}, h("h2", {}, "Limits")), h("div.pad.stack", {},
    h("p.soft", {}, now, who.admin ? " Empty means no limit." : " An admin key can change them."),
    who.admin && h("div.fields", {}, writes.node, bytes.node),
    who.admin && h("div.row", {}, save, reset)));
}

/** A field for a limit; `read()` is its number, 0 if it is empty, and null after showing `help` at the field. */
function limitField(title, value, parse, help) {
  const input = h("input", { value: value || "", autocomplete: "off" });
  const fault = h("div.alert", { role: "alert", hidden: true }, help);
  const read = () => {
    const number = parse(input.value.trim() || "0");
    fault.hidden = number !== null;
    input.setAttribute("aria-invalid", String(number === null));
    if (number === null) input.focus();
    return number;
  };
  return { node: h("div.stack", {}, h("label", {}, title, input), fault), read };
}

function readCount(text) {
  return /^\d{1,15}$/.test(text) ? Number(text) : null;
}

/** 50000000, 50MB or 1.5 GB as a number of bytes; null if it is none. */
function readSize(text) {
  const [, number, unit] = /^(\d{1,15}(?:\.\d+)?) *([kmgt]?b?)$/i.exec(text) ?? [];
  if (number === undefined) return null;
  const bytes = Math.round(number * 1000 ** " kmgt".indexOf(unit.toLowerCase().replace("b", "") || " "));
  return Number.isSafeInteger(bytes) ? bytes : null;
}

function copy(namespace) {
  return h("section.panel", {}, h("header", {}, h("h2", {}, "Export")), h("div.pad.row", {},
    h("p.soft.grow", {}, "Everything in this namespace as lines of JSON, which scrubjay import reads."),
    h("a.button", { href: at(namespace, "export"), download: `${namespace.replace(/[^\w.-]+/g, "-")}.jsonl` }, "Export")));
}

function person(namespace, who) {
  const name = h("input", { required: true, autocomplete: "off", placeholder: "sarah", "aria-label": "Name of the person", class: "grow" });
  return h("section.panel", {}, h("header", {}, h("h2", {}, "Erase one person")), h("form.pad.stack", { onsubmit: (event) => {
    event.preventDefault();
    attempt(() => erasePerson(namespace, name.value.trim()));
  } }, h("p.soft", {}, "Finds the sessions, values and notes that have a name, lists them, and erases those that you leave ticked. ",
    who.admin && ["Names are also in api keys: ", h("a", { href: "#/keys" }, "revoke and forget"), " those of the person."]),
  h("div.row", {}, name, h("button.danger", { type: "submit" }, "Find"))));
}

function ending(namespace, who) {
  const clear = button("Delete everything", async () => {
    if (!await confirmDeletion("Delete everything in this namespace?", "All values, conversations and notes.", { typed: namespace })) return;
    const { deleted } = await send("DELETE", at(namespace));
    toast(`Deleted: ${count(deleted)}`);
    location.hash = "#/";
  }, { kind: "danger" });
  const erase = button("Erase with proof", async () => {
    const sure = await confirmDeletion("Erase the whole namespace?",
      "It is removed from every table, log and limit, the file is rebuilt, and then searched for traces.", { typed: namespace, action: "Erase" });
    if (!sure) return;
    const result = await send("POST", at(namespace, "erase"));
    toast(result.traces.length ? `Traces remain: ${result.traces.join(", ")}` : "Erased: no trace was found in the file", result.traces.length ? "error" : "");
    if (result.keys.length) await offerToForget(result.keys);
    location.hash = "#/";
  }, { kind: "danger primary" });
  return h("section.panel", {}, h("header", {}, h("h2", {}, "Delete")), h("div.pad.stack", {},
    h("div.row", {}, h("p.soft.grow", {}, "Delete all values and notes. The log still shows that they were there."), clear),
    who.admin && h("div.row", {}, h("p.soft.grow", {}, "Erase the whole namespace: nothing of it is left in the file, and that is checked."), erase)));
}
