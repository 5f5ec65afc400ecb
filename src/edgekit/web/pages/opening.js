// A reference that was typed -> a first answer: progress while it is read, errors with what to do.

import { job, query } from "./api.js";
import { wantsOneType } from "./cache_names.js";
import { ENGINES } from "./control_rows.js";
import { el } from "./dom.js";

const NAMED = 100; // letters of a name, by which it is found in a message
const QUIET_MS = 150; // what is quicker shows no progress
const ALLOWED = "Files are read only from folders given with `edgekit web --models-dir FOLDER`; addresses of this machine and of its own network only with `--allow-private`.";
const SPELLED = "Look at the spelling: a catalog id, org/name of a hub, a URL, sample:NAME, or a file inside a --models-dir.";
const OTHERS = "The model was reached, but this cannot be answered for it: another engine or machine may do.";
const ONE_TYPE = "This model keeps one cache for keys and values: choose one type for both.";
const AGAIN = "The other server failed or was too slow: try again, or give a local file.";
const HELP = {
  NotAllowedError: ALLOWED,
  PrivateAddressError: ALLOWED,
  NotFoundError: SPELLED,
  RemoteNotFoundError: SPELLED,
  RemoteInspectError: AGAIN,
  RemoteChangedError: AGAIN,
  DeadlineError: AGAIN,
  RemoteAccessError: "The server wants a permission: log in to the hub on this machine (HF_TOKEN), or choose another repository.",
  RefusedError: OTHERS,
  HardwareError: OTHERS,
  UnknownArchitectureError: OTHERS,
  HeaderError: "The file is not what its name says, or is damaged: fetch it anew, or choose another.",
  TooManyError: "Wait a moment, then try again.",
  Unreachable: "Start `edgekit web` again; this page goes on by itself.",
};

const NO_ENGINE = new Set(["RefusedError", "HardwareError", "UnknownArchitectureError"]);
/** What to do about a question that makes no sense, by what it is about. */
const USAGE = {
  model: SPELLED,
  engine: "Choose one of the engines that there are.",
  machine: "The machine cannot be taken as it is described: choose another one above, or ask about the machine that runs this page.",
  settings: "A setting of the address cannot be used: correct it there, or ask without these settings.",
  all: "Something in the address cannot be used: correct it there, or ask without these settings.",
};

/** Shows how far it is, with a way to call it off, until both are there: the check, and the facts that `further(check, signal)` gives. */
export function open(place, fields, { signal, further }) {
  const control = new AbortController();
  signal.addEventListener("abort", () => control.abort(), { once: true });
  const line = el("p", { class: "progress-line", text: "Reading the header ..." });
  const clock = el("span", { class: "muted small" });
  const cancel = el("button", { type: "button", text: "Cancel", onclick: () => control.abort() });
  const panel = el("div", { class: "panel opening", role: "status" }, el("progress", { "aria-label": "Reading" }), line, el("div", { class: "row" }, clock, cancel));
  const began = performance.now();
  const timer = setInterval(() => (clock.textContent = `${Math.round((performance.now() - began) / 1000)} s`), 1000);
  const quiet = setTimeout(() => place.replaceChildren(panel), QUIET_MS);
  const onProgress = (text) => (line.textContent = text);
  const both = async () => {
    const check = await job("check", fields, { onProgress, signal: control.signal });
    const facts = await further(check, control.signal);
    control.signal.throwIfAborted();
    return { check, facts };
  };
  return both().finally(() => {
    clearInterval(timer);
    clearTimeout(quiet);
    panel.remove();
  });
}

/** Whether a message names the model, a setting, the machine or the engine, and so what can be done about it. */
function subjectOf({ type, message }, settings) {
  if (NO_ENGINE.has(type)) return "engine";
  if (type !== "UsageError") return "model";
  if (/^(unknown engine|engine: )/.test(message)) return "engine";
  if (/^(unknown device|(--)?(device|ram|vram)\b)/.test(message)) return "machine";
  if (message.startsWith("-") || Object.keys(settings.chosen).some((key) => message.startsWith(`${key}: `))) return "settings";
  const isNamed = message.includes(settings.name.slice(0, NAMED)); // a message cuts what is very long
  return isNamed || !settings.isSaid ? "model" : "all";
}

function helpFor(error, subject) {
  if (wantsOneType(error.message)) return ONE_TYPE;
  return error.type === "UsageError" ? USAGE[subject] : HELP[error.type];
}

/** Where keys and values must have one cache type: each of the two, for both. */
function oneType(settings) {
  const halves = ["type_k", "type_v"];
  const types = new Set(halves.map((key) => settings.chosen[key] ?? "f16"));
  const link = (type) => query({ ...settings.query(), ...Object.fromEntries(halves.map((key) => [key, type])) });
  return [...types].map((type) => el("a", { class: "button", href: `/model${link(type)}`, text: `Ask with ${type} for both` }));
}

/** What can be done beside trying again. */
function waysOut(error, subject, settings, { onplain }) {
  if (wantsOneType(error.message)) return oneType(settings);
  if (subject === "engine") return ENGINES.filter(([name]) => name && name !== settings.chosen.engine).map(([name, text]) => engineLink(settings, name, text));
  if (subject === "model" || !settings.isSaid) return [];
  return [el("button", { type: "button", text: "Ask without these settings", onclick: () => onplain(subject) })];
}

function engineLink(settings, name, text) {
  return el("a", { class: "button", href: `/model${query(settings.queryFor(name))}`, text: `Ask ${text}` });
}

/** {node, heading}: what went wrong, what to do, and a way to try again. onplain("settings", "machine" or "all") asks without them. */
export function failure(error, settings, { retry, onplain }) {
  const isCancelled = error.name === "AbortError";
  const told = isCancelled ? "Cancelled: nothing was read to the end." : error.message;
  const subject = isCancelled ? "model" : subjectOf(error, settings);
  const help = isCancelled ? null : helpFor(error, subject);
  const heading = el("h2", { id: "failure-title", tabIndex: -1, text: isCancelled ? "Cancelled" : "There is no answer" });
  const node = el(
    "section",
    { class: "panel failure", "aria-labelledby": "failure-title" },
    heading,
    el("p", { class: isCancelled ? "" : "error", role: "alert", text: told }),
    help && el("p", { text: help }),
    el("div", { class: "buttons" }, el("button", { type: "button", class: "primary", text: "Try again", onclick: retry }), ...waysOut(error, subject, settings, { onplain })),
  );
  return { node, heading };
}
