// Calls to /api/v1: errors as sentences, progress as events.

import { ERRORS } from "./texts.js";

const BASE = "/api/v1/";
const READ = new Set([
  "hardware",
  "devices",
  "engines",
  "catalog",
  "index",
  "openapi.json",
  "home",
  "complete",
  "hub_search",
]); // asked with GET
const BEAT_MS = 5000; // while the server answers
const POLL_MS = 2000; // while the server is lost

/** An error of the server, with its message. */
class ApiError extends Error {
  constructor(message, { type = "Error", status = 0, about = null } = {}) {
    super(message);
    this.name = "ApiError";
    this.type = type;
    this.status = status;
    this.about = about; // the part of the request at fault
  }
}

/** Whether the same request may succeed later: server busy, timeout, or server stopped. */
export const isPassing = ({ status }) => status === 0 || status === 408 || status === 429 || status >= 500;

/** Watches whether the server answers. Dispatches "lost" and "back". */
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

const hasValue = (value) =>
  value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length);

/** The fields with a value; the server has defaults for the others. */
function said(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => hasValue(value)));
}

/** Fields as a query string; lists become repeated parameters. */
export function query(fields) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(said(fields))) {
    for (const one of [value].flat()) params.append(name, String(one));
  }
  const text = params.toString();
  return text ? `?${text}` : "";
}

/** fetch, but a server that does not answer is an ApiError of type "Unreachable". */
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

/** The JSON of the response; throws its error as an ApiError. */
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

/** Calls the API: call("estimate", {model: "sample:llama", context: "8k"}). */
export async function call(name, fields = {}, { signal } = {}) {
  const isRead = READ.has(name.split("/")[0]);
  const url = BASE + name.split("/").map(encodeURIComponent).join("/");
  const reply = isRead ? await reach(url + query(fields), { signal }) : await reach(url, posted(fields, signal));
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
 * Also calls handlers.error(ApiError), and handlers.end() at the end of the stream. Returns close().
 */
export function events(path, fields, handlers) {
  const control = new AbortController();
  const follow = async () => {
    for await (const { name, data } of stream(BASE + path, fields, control.signal)) {
      handlers[name]?.(data);
    }
    if (!control.signal.aborted) handlers.end?.();
  };
  follow().catch((error) => {
    if (error.name !== "AbortError" && !control.signal.aborted) handlers.error?.(error);
  });
  return () => control.abort();
}

/** Runs a call as a job: calls onProgress(line) meanwhile; aborting the signal cancels it. */
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
