// Requests to /v1. The cookie of the sign-in goes with them by itself.

const RETRY_MS = 3000; // until a stream that the server refused is opened again

/** An error that the server answered, with its status and code. */
export class ApiError extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

/** A path below a namespace, with every part encoded: at("my ns", "items", key). A browser takes "." and ".." out of paths. */
export function at(namespace, ...parts) {
  const dots = [namespace, ...parts].find((part) => part === "." || part === "..");
  if (dots) throw new ApiError(400, "invalid_input", `A browser cannot ask for the name “${dots}”; use the command scrubjay for it.`);
  return ["/v1/namespaces", namespace, ...parts].map((part, i) => (i ? encodeURIComponent(part) : part)).join("/");
}

/** A path as a URL: a browser refuses paths on a page that was opened with an api key in its URL. */
export const absolute = (path) => location.origin + path;

/** A path with a query; empty values are left out. */
export function withQuery(path, query) {
  const pairs = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const text = new URLSearchParams(pairs.flatMap(([name, value]) => [value].flat().map((each) => [name, each]))).toString();
  return text ? `${path}?${text}` : path;
}

/**
 * Send a request and return its JSON; null without a body. `text` is a body that is JSON text already.
 * With `exact`, numbers that JavaScript would change stay as they were written: for values that are shown or edited.
 */
export async function send(method, path, { body, text, headers = {}, signal, exact = false } = {}) {
  const response = await fetch(absolute(path), {
    method, signal, headers: { Accept: "application/json", "Scrubjay-Path": path.split("?")[0], ...headers },
    body: text ?? (body === undefined ? undefined : JSON.stringify(body)),
  }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer. Is it still running?");
  });
  const answer = await response.text();
  if (response.ok) return answer ? (exact ? parseExactly(answer) : JSON.parse(answer)) : null;
  let fault = {};
  try { fault = JSON.parse(answer); } catch { /* not from the service: a proxy, say */ }
  if (response.status === 401) document.dispatchEvent(new Event("signed-out"));
  throw new ApiError(response.status, fault.code ?? "http_error", fault.detail ?? `The server answered ${response.status}.`);
}

export const get = (path, query = {}, options = {}) => send("GET", withQuery(path, query), options);

/** Show the form for signing in if the sign-in has ended, or its key was revoked. */
export async function checkSignIn() {
  const who = await get("/v1/sign-in").catch(() => null); // no answer says nothing
  if (who?.name === null) document.dispatchEvent(new Event("signed-out"));
}

export function parseExactly(text) {
  return JSON.parse(text, (_name, value, context) => {
    if (typeof value !== "number" || !context?.source || String(value) === context.source || !JSON.rawJSON) return value;
    return JSON.rawJSON(context.source);
  });
}

/** The position in the log of a namespace's changes: what is read after this call is older than what follows it. */
export async function cursorOf(namespace, signal) {
  return (await get(at(namespace, "changes"), {}, { signal })).cursor;
}

/**
 * Watch a namespace from a cursor on: calls `changed` with each change. Returns a function that stops.
 * After a break that the log does not cover, `changed` gets a change of an empty key: anything may be different.
 * A hidden page does not watch: browsers open only six connections to a server, for all tabs together.
 * `state` is called with "live", with "lost" while the server does not answer, or with "" when nothing is watched.
 */
export function watch(namespace, cursor, changed, state = () => {}) {
  let source = null, timer = 0;
  const close = () => { clearTimeout(timer); source?.close(); source = null; state(""); };
  const open = () => {
    source = new EventSource(absolute(withQuery(at(namespace, "changes"), { after: cursor })));
    source.onopen = () => { state("live"); if (cursor === "") changed({ key: "" }); };
    source.onmessage = (event) => { cursor = event.lastEventId; changed(JSON.parse(event.data)); };
    source.onerror = () => {
      const isRefused = source?.readyState === EventSource.CLOSED; // otherwise it connects again by itself
      if (isRefused) close(); // the log is shorter now, the server is busy, or the key was revoked
      state("lost");
      if (!isRefused) return;
      cursor = "";
      timer = setTimeout(turn, RETRY_MS);
      checkSignIn();
    };
  };
  const turn = () => (document.hidden ? close() : source ?? open());
  document.addEventListener("visibilitychange", turn);
  turn();
  return () => { document.removeEventListener("visibilitychange", turn); close(); };
}
