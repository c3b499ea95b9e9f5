// The API, from /openapi.json: grouped, with examples, and a form to try each route on this server.

import { absolute, get, parseExactly } from "./api.js";
import { fill, h, visible } from "./dom.js";
import { button, copyable, notice } from "./ui.js";
import { themeButton } from "./theme-button.js";

const EXAMPLES = { namespace: "demo", key: "user", id: "1", agent_id: "demo" };
const TEXTS = {
  created_at: "2026-11-17T19:00:00.000+00:00", updated_at: "2026-11-17T19:00:00.000+00:00", at: "2026-11-17T19:00:00.000+00:00",
  changed_at: "2026-11-17T19:00:00.000+00:00", resets_at: "2026-11-18T00:00:00.000+00:00", expires_at: "2026-11-18T19:00:00.000+00:00", time: "2026-11-17T19:00:00.000+00:00",
  namespace: "demo", key: "user", content: "Sarah prefers short answers", type: "preference", verb: "set", who: "support bot",
  name: "support bot", session: "default", status: "ok", version: "0.1.0", sender: "Sarah", role: "user", message: "Hi", query: "What does Sarah prefer?",
};
const NUMBERS = { version: 1, bytes: 20, keys: 1, notes: 1, score: 0.71, limit: 10, ttl: 3600, cursor: 57, length: 2, writes_per_day: 1000, max_bytes: 50_000_000 };
const apiKey = h("input", { type: "password", autocomplete: "off", placeholder: "if this server needs one" });

async function start() {
  const main = document.getElementById("main");
  fill(document.getElementById("account"), themeButton());
  try {
    const document_ = await get("/openapi.json");
    fill(main, introduction(document_.info), page(document_));
    openLinked();
  } catch (error) {
    fill(main, notice(error));
  }
}

function introduction(info) {
  return h("div.stack", {}, h("h1", {}, `${info.title} API `, h("span.soft", {}, info.version)),
    h("p.soft", {}, "Requests and responses are JSON. Open a route to see examples and to try it on this server. For programs: ", h("a", { href: "/openapi.json" }, "openapi.json"), "."),
    h("div.fields", {}, h("label", {}, "Api key for “Send”, unless you are signed in", apiKey)));
}

function page(openapi) {
  const groups = new Map((openapi.tags ?? []).map((tag) => [tag.name, []]));
  for (const [path, methods] of Object.entries(openapi.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const group = operation.tags?.[0] ?? "Other";
      groups.set(group, [...(groups.get(group) ?? []), { path, method, operation, openapi }]);
    }
  }
  for (const [group, routes] of groups) if (!routes.length) groups.delete(group);
  const idOf = (group) => group.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  return h("div.docs", {},
    h("nav", { "aria-label": "Groups of routes" }, [...groups.keys()].map((group) => h("a", { href: `#${idOf(group)}` }, group))),
    h("div", {}, [...groups].map(([group, routes]) => h("section", { id: idOf(group) }, h("h2", {}, group), routes.map(routeOf)))));
}

function routeOf(route) {
  const { path, method, operation } = route;
  const node = h("details.panel.route", { id: operation.operationId },
    h("summary", {}, h("b", { class: `verb ${method}` }, method.toUpperCase()), h("code", {}, path), h("span", {}, withCode(sentence(operation)))));
  node.addEventListener("toggle", () => { if (node.childElementCount === 1) node.append(details(route)); });
  return node;
}

function sentence(operation) {
  return operation.description || operation.summary;
}

/** A text whose parts in backticks are code. */
function withCode(text) {
  return text.split(/`+([^`]+)`+/).map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

/** Open the route that the address names. */
function openLinked() {
  const node = location.hash && document.getElementById(location.hash.slice(1));
  if (!node) return;
  if (node.tagName === "DETAILS") node.open = true;
  node.scrollIntoView();
}

// ---------------------------------------------------------------- a route

function details(route) {
  const form = new Form(route);
  const curl = h("div", {}), answer = h("div.stack", { "aria-live": "polite" });
  const draw = () => fill(curl, copyable(form.curl()));
  form.node.addEventListener("input", draw);
  draw();
  const samples = route.operation["x-codeSamples"] ?? [{ lang: "Python", source: form.python() }];
  return h("div.pad.stack", {}, form.node,
    h("h3", {}, "curl"), curl,
    samples.map((sample) => [h("h3", {}, sample.lang), copyable(onThisServer(sample.source))]),
    h("h3", {}, "Answers"), answers(route),
    h("div.row", {}, button("Send", () => form.send(answer), { kind: "primary" }), h("span.soft.small", {}, `to ${location.origin}`)), answer);
}

/** An example of the document with the address of this server in it. */
function onThisServer(source) {
  return source.replace('Memory("demo")', `Memory("demo", url="${location.origin}")`);
}

function answers({ operation, openapi }) {
  const [status, good] = Object.entries(operation.responses).find(([each]) => each < "300") ?? [];
  const schema = good?.content?.["application/json"]?.schema;
  const faults = Object.entries(operation.responses).filter(([each]) => each !== status);
  return h("div.stack", {},
    h("p.small", {}, h("b", {}, status), schema ? ", for example" : ", without JSON"),
    schema && copyable(JSON.stringify(sample(schema, openapi), null, 2)),
    h("details", {}, h("summary.small.soft", {}, `${faults.length} other answers`), h("table", {}, h("tbody", {},
      faults.map(([code, fault]) => h("tr", {}, h("td.mono", {}, code), h("td", {}, withCode(fault.description))))))));
}

/** The parameters and the body of a route, to fill in. */
class Form {
  constructor({ path, method, operation, openapi }) {
    Object.assign(this, { path, method: method.toUpperCase(), operation });
    this.inputs = inOrder(operation.parameters ?? [], path).map((parameter) => ({ parameter, input: inputFor(parameter) }));
    const content = operation.requestBody?.content ?? {};
    const json = content["application/json"];
    this.body = json ? h("textarea", { rows: 5, spellcheck: "false", value: JSON.stringify(json.example ?? sample(json.schema, openapi), null, 2) }) : null;
    this.node = h("div.stack", {},
      this.inputs.length > 0 && h("div.fields", {}, this.inputs.map(({ parameter, input }) =>
        h("label", { title: parameter.description?.replaceAll("`", "") }, h("span", {}, parameter.name, h("span.soft", {}, ` (${parameter.in}${parameter.required ? "" : ", optional"})`)), input))),
      this.body && h("label", {}, "Body", this.body));
  }

  url() {
    let path = this.path;
    const query = new URLSearchParams();
    for (const { parameter, input } of this.inputs) {
      if (parameter.in === "path") path = path.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (parameter.in === "query" && input.value) query.append(parameter.name, input.value);
    }
    return `${path}${query.size ? `?${query}` : ""}`;
  }

  headers() {
    return Object.fromEntries(this.inputs.filter(({ parameter, input }) => parameter.in === "header" && input.value)
      .map(({ parameter, input }) => [parameter.name, input.value]));
  }

  curl() {
    const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
    const parts = ["curl -s", this.method === "GET" ? "" : this.method === "HEAD" ? "-I" : `-X ${this.method}`, quote(`${location.origin}${this.url()}`)];
    for (const [name, value] of Object.entries(this.headers())) parts.push(`-H ${quote(`${name}: ${value}`)}`);
    if (this.body) parts.push(`-d ${quote(compact(this.body.value))}`);
    return parts.filter(Boolean).join(" ");
  }

  python() {
    const body = this.body ? `, json=${pythonText(this.body.value)}` : "";
    return `import requests\n\nrequests.${this.method.toLowerCase()}("${location.origin}${this.url()}"${body})`;
  }

  async send(place) {
    const headers = { Accept: "application/json", ...this.headers() };
    if (apiKey.value) headers.Authorization = `Bearer ${apiKey.value}`;
    const started = performance.now();
    const response = await fetch(absolute(this.url()), { method: this.method, headers, body: this.body?.value });
    const text = await response.text();
    const took = Math.round(performance.now() - started);
    const shown = response.headers.get("content-type")?.includes("json") ? pretty(text) : text;
    fill(place, h("p", {}, h(response.ok ? "span.tag.accent" : "span.tag.bad", {}, `${response.status} ${response.statusText}`), h("span.soft.small", {}, ` ${took} ms`)),
      text && h("pre.code", { tabindex: "0" }, visible(shown.slice(0, 50_000))));
  }
}

/** Parameters of the path first, in its order. */
function inOrder(parameters, path) {
  const place = ({ name, in: where }) => (where === "path" ? path.indexOf(`{${name}}`) : path.length);
  return [...parameters].sort((a, b) => place(a) - place(b));
}

function inputFor({ name, required, schema }) {
  const given = EXAMPLES[name];
  const value = required ? given ?? "" : "";
  if (schema.enum) return h("select", {}, !required && h("option", { value: "" }, "–"), schema.enum.map((each) => h("option", {}, each)));
  return h("input", { value, autocomplete: "off", placeholder: schema.default ?? "" });
}

function compact(text) {
  try { return JSON.stringify(parseExactly(text)); } catch { return text; }
}

/** A JSON text as Python writes it. */
function pythonText(text) {
  return compact(text).replace(/\b(true|false|null)\b(?=[,}\]])/g, (word) => ({ true: "True", false: "False", null: "None" })[word]);
}

function pretty(text) {
  try { return JSON.stringify(parseExactly(text), null, 2); } catch { return text; }
}

/** A value that fits a schema. */
function sample(schema, openapi, name = "") {
  if (schema.$ref) return sample(openapi.components.schemas[schema.$ref.split("/").at(-1)], openapi, name);
  if (schema.example !== undefined) return schema.example;
  if (schema.examples?.length) return schema.examples[0];
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  const options = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (options && !schema.properties) return sample(options[0], openapi, name);
  const type = [schema.type].flat()[0];
  if (type === "array") return schema.items && Object.keys(schema.items).length ? [sample(schema.items, openapi, name.replace(/s$/, ""))] : [];
  if (type === "integer" || type === "number") return NUMBERS[name] ?? schema.minimum ?? 1;
  if (type === "boolean") return schema.default ?? false;
  if (type === "string") return TEXTS[name] ?? name;
  if (name === "values") return { theme: "dark", language: "en" };
  if (schema.properties) return Object.fromEntries(Object.entries(schema.properties).map(([field, each]) => [field, sample(each, openapi, field)]));
  return { value: { name: "Sarah" }, values: { theme: "dark" } }[name] ?? {};
}

addEventListener("hashchange", openLinked);
start();
