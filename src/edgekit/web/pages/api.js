// Calls of the server, in its own words: /api/v1, errors as sentences, progress as events.

import { ERRORS } from "./texts.js";

const BASE = "/api/v1/";
const READ = new Set([
  "hardware", "devices", "engines", "catalog", "index", "openapi.json", "home", "complete", "hub_search",
]); // asked with GET
const BEAT_MS = 5000; // while all is well
const POLL_MS = 2000; // while the server is lost

/** What the server refused, as the plain sentence it gave. */
class ApiError extends Error {
  constructor(message, { type = "Error", status = 0, about = null } = {}) {
    super(message);
    this.name = "ApiError";
    this.type = type;
    this.status = status;
    this.about = about; // the part of the question that is at fault
  }
}

/** Whether the same question may be answered the next time: too many, too slow, or nobody there. */
export const isPassing = ({ status }) => status === 0 || status === 408 || status === 429 || status >= 500;

/** Whether the server answers: tells "lost" and "back", shows nothing itself. */
class Connection extends EventTarget {
  isLost = false;
  #timer = 0;

  watch() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#ask(), this.isLost ? POLL_MS : BEAT_MS);
  }

  tell(isLost) {
    if (isLost === this.isLost) return;
    this.isLost = isLost;
    this.dispatchEvent(new Event(isLost ? "lost" : "back"));
    this.watch();
  }

  async #ask() {
    if (!document.hidden || this.isLost) this.tell(!(await answers()));
    this.watch();
  }
}

export const connection = new Connection();

async function answers() {
  try {
    const reply = await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(4000) });
    return reply.ok || reply.status === 429;
  } catch {
    return false;
  }
}

const isSaid = (value) =>
  value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length);

/** The fields that were said; the others are left to the server. */
function said(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => isSaid(value)));
}

/** Fields as a query: a list is repeated. */
export function query(fields) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(said(fields))) {
    for (const one of [value].flat()) params.append(name, String(one));
  }
  const text = params.toString();
  return text ? `?${text}` : "";
}

/** fetch, where no answer at all is an ApiError of type "Unreachable". */
async function reach(url, options) {
  try {
    const reply = await fetch(url, options);
    connection.tell(false);
    return reply;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    connection.tell(true);
    throw new ApiError(ERRORS.serverGone, { type: "Unreachable" });
  }
}

/** The answer's JSON, or its error thrown. */
async function answer(reply) {
  const body = await reply.json().catch(() => null);
  if (reply.ok && body !== null) return body;
  const { type, message, about } = body?.error ?? {};
  const plain = message ?? ERRORS.status(reply.status);
  throw new ApiError(plain, { type: type ?? "Error", status: reply.status, about });
}

function posted(fields, signal) {
  const headers = { "Content-Type": "application/json" };
  return { method: "POST", headers, body: JSON.stringify(said(fields)), signal };
}

/** One call, by its name: call("estimate", {model: "sample:llama", context: "8k"}). */
export async function call(name, fields = {}, { signal } = {}) {
  const isRead = READ.has(name.split("/")[0]);
  const url = BASE + name.split("/").map(encodeURIComponent).join("/");
  const reply = isRead
    ? await reach(url + query(fields), { signal })
    : await reach(url, posted(fields, signal));
  return answer(reply);
}

/** One event of a stream: its name and its data. */
function parsed(block) {
  const fields = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    const [, name, value] = /^(\w+): ?(.*)$/.exec(line) ?? [];
    if (name === "data") fields.data += value;
    else if (name) fields[name] = value;
  }
  return fields;
}

/** The events of a stream, one by one, until it ends or the signal aborts. */
async function* stream(path, fields, signal) {
  const reply = await reach(path + query(fields), { signal, headers: { Accept: "text/event-stream" } });
  if (!reply.ok) await answer(reply);
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of chunks(reply.body.getReader())) {
    const blocks = (rest + decoder.decode(chunk, { stream: true })).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const one of blocks.map(parsed)) {
      if (one.data) yield { name: one.event, data: JSON.parse(one.data) };
    }
  }
}

async function* chunks(reader) {
  for (;;) {
    let step;
    try {
      step = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      connection.tell(true);
      throw new ApiError(ERRORS.serverGone, { type: "Unreachable" });
    }
    if (step.done) return;
    yield step.value;
  }
}

/**
 * Follows the events of a GET path under /api/v1/; handlers: {name: fn(data)}.
 * What goes wrong on the way comes to handlers.error(ApiError), the end of the stream to handlers.end(). Returns close().
 */
export function events(path, fields, handlers) {
  const control = new AbortController();
  const follow = async () => {
    for await (const { name, data } of stream(BASE + path, fields, control.signal)) {
      handlers[name]?.(data);
    }
    handlers.end?.();
  };
  follow().catch((error) => {
    if (error.name !== "AbortError") handlers.error?.(error);
  });
  return () => control.abort();
}

/** A long call: onProgress(line) while it works; aborting the signal calls it off. */
export async function job(name, fields, { onProgress, signal } = {}) {
  const begun = await answer(await reach(`${BASE}jobs/${name}`, posted(fields, signal)));
  const path = `${BASE}jobs/${encodeURIComponent(begun.id)}`;
  const callOff = () => fetch(path, { method: "DELETE", keepalive: true }).catch(() => {});
  signal?.addEventListener("abort", callOff, { once: true });
  try {
    return await followed(`${path}/events`, onProgress, signal);
  } finally {
    signal?.removeEventListener("abort", callOff);
  }
}

async function followed(path, onProgress, signal) {
  for await (const { name, data } of stream(path, {}, signal)) {
    if (name === "progress") onProgress?.(data.line);
    if (name === "done") return data;
    if (name === "failed") throw new ApiError(data.error.message, data.error);
    if (name === "cancelled") throw new DOMException(ERRORS.cancelled, "AbortError");
  }
  throw new ApiError(ERRORS.serverStopped, { type: "Unreachable" });
}

connection.watch();
