// A reference that was typed -> a first answer: progress while it is read, errors with what to do.

import { job, query } from "./api.js";
import { ONE_TYPE } from "./cache_names.js";
import { el } from "./dom.js";
import { ENGINES } from "./engines.js";
import { COMMON, OPENING } from "./texts.js";

const QUIET_MS = 150; // what is quicker shows no progress
const NO_ENGINE = new Set(["RefusedError", "HardwareError", "UnknownArchitectureError"]);

/** Shows how far it is, with a way to call it off, until both are there: the check, and the facts that `further(check, signal)` gives. */
export function open(place, fields, { signal, further }) {
  const control = new AbortController();
  signal.addEventListener("abort", () => control.abort(), { once: true });
  const line = el("p", { class: "progress-line", text: OPENING.reading });
  const clock = el("span", { class: "muted small" });
  const cancel = el("button", { type: "button", text: COMMON.cancel, onclick: () => control.abort() });
  const panel = el("div", { class: "panel opening", role: "status" }, el("progress", { "aria-label": OPENING.progress }), line, el("div", { class: "row" }, clock, cancel));
  const began = performance.now();
  const timer = setInterval(() => (clock.textContent = OPENING.seconds(Math.round((performance.now() - began) / 1000))), 1000);
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

/** Whether the model, a setting, the machine or the engine is at fault, and so what can be done about it. */
function subjectOf({ type, about }, settings) {
  if (NO_ENGINE.has(type)) return "engine";
  if (type !== "UsageError" || !settings.isSaid) return "model";
  return about ?? "all";
}

function helpFor(error, subject) {
  if (error.about === ONE_TYPE) return OPENING.oneCacheType;
  return error.type === "UsageError" ? OPENING.usageHelp[subject] : OPENING.help[error.type];
}

function titleFor(error, subject) {
  const found = error.type === "UsageError" ? OPENING.usageTitles[subject] : OPENING.titles[error.type];
  return found ?? OPENING.failedTitle;
}

/** Where keys and values must have one cache type: each of the two, for both. */
function oneType(settings) {
  const halves = ["type_k", "type_v"];
  const types = new Set(halves.map((key) => settings.chosen[key] ?? "f16"));
  const link = (type) => query({ ...settings.query(), ...Object.fromEntries(halves.map((key) => [key, type])) });
  return [...types].map((type) => el("a", { class: "button", href: `/model${link(type)}`, text: OPENING.useForBoth(type) }));
}

/** What can be done beside trying again. */
function waysOut(error, subject, settings, { onplain }) {
  if (error.about === ONE_TYPE) return oneType(settings);
  if (subject === "engine") return ENGINES.filter(([name]) => name && name !== settings.chosen.engine).map(([name, text]) => engineLink(settings, name, text));
  if (subject === "model" || !settings.isSaid) return [];
  return [el("button", { type: "button", text: OPENING.withoutSettings, onclick: () => onplain(subject) })];
}

function engineLink(settings, name, text) {
  return el("a", { class: "button", href: `/model${query(settings.queryFor(name))}`, text: OPENING.useEngine(text) });
}

/** {node, heading}: what went wrong, what to do, and a way to try again. onplain("settings", "machine" or "all") asks without them. */
export function failure(error, settings, { retry, onplain }) {
  const isCancelled = error.name === "AbortError";
  const told = isCancelled ? OPENING.cancelled : error.message;
  const subject = isCancelled ? "model" : subjectOf(error, settings);
  const help = isCancelled ? null : helpFor(error, subject);
  const heading = el("h2", { id: "failure-title", tabIndex: -1, text: isCancelled ? OPENING.cancelledTitle : titleFor(error, subject) });
  const node = el(
    "section",
    { class: "panel failure", "aria-labelledby": "failure-title" },
    heading,
    el("p", { class: isCancelled ? "" : "error", role: "alert", text: told }),
    help && el("p", { text: help }),
    el("div", { class: "buttons" }, el("button", { type: "button", class: "primary", text: COMMON.tryAgain, onclick: retry }), ...waysOut(error, subject, settings, { onplain })),
  );
  return { node, heading };
}
