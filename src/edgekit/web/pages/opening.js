// Opens a model: progress while it is read, then the first check, or an error with what to do next.

import { job, query } from "./api.js";
import { ONE_TYPE } from "./cache_names.js";
import { el } from "./dom.js";
import { engineLabel, ENGINES } from "./engines.js";
import { COMMON, OPENING } from "./texts.js";

const QUIET_MS = 150; // no progress is shown before this
const RAM_SIZES = ["16G", "32G", "64G", "128G"]; // offered if the machine's RAM is unknown
const NO_RAM = "ram"; // the `about` of an error
const NO_ENGINE = new Set(["RefusedError", "HardwareError", "UnknownArchitectureError"]);

/**
 * Checks the model, then awaits `further(check, signal)`: {check, facts}. Meanwhile it shows the progress and a Cancel
 * button. `place` already has its final size, so that nothing moves when the answer comes.
 */
export function open(place, fields, { signal, further }) {
  const control = new AbortController();
  signal.addEventListener("abort", () => control.abort(), { once: true });
  const line = el("p", { class: "progress-line", text: OPENING.reading });
  const clock = el("span", { class: "muted small" });
  const cancel = el("button", { type: "button", text: COMMON.cancel, onclick: () => control.abort() });
  const row = el("div", { class: "row" }, clock, cancel);
  const bar = el("progress", { "aria-label": OPENING.progress });
  const panel = el("div", { class: "panel opening", role: "status" }, bar, line, row);
  const began = performance.now();
  const seconds = () => OPENING.seconds(Math.round((performance.now() - began) / 1000));
  const timer = setInterval(() => (clock.textContent = seconds()), 1000);
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
  });
}

/** What is at fault: "model", "settings", "machine", "engine", "ram" or "all". It decides what the page offers. */
function subjectOf({ type, about }, settings) {
  if (about === NO_RAM) return NO_RAM;
  if (NO_ENGINE.has(type)) return "engine";
  if (type !== "UsageError" || !settings.hasChoices) return "model";
  return about ?? "all";
}

function helpFor(error, subject) {
  if (error.about === ONE_TYPE) return OPENING.oneCacheType;
  if (subject === NO_RAM) return OPENING.noRam.help;
  return error.type === "UsageError" ? OPENING.usageHelp[subject] : OPENING.help[error.type];
}

function titleFor(error, subject) {
  if (subject === NO_RAM) return OPENING.noRam.title;
  const found = error.type === "UsageError" ? OPENING.usageTitles[subject] : OPENING.titles[error.type];
  return found ?? OPENING.failedTitle;
}

/** The server's message, or the page's own if the page has buttons for what it asks. */
function messageOf(error, subject, { chosen }) {
  return subject === NO_RAM ? OPENING.noRam.message(engineLabel(chosen.engine)) : error.message;
}

/** Buttons for models that need the same cache type for K and V: one for each of the two types. */
function oneType(settings) {
  const halves = ["type_k", "type_v"];
  const types = new Set(halves.map((key) => settings.chosen[key] ?? "f16"));
  const link = (type) => query({ ...settings.query(), ...Object.fromEntries(halves.map((key) => [key, type])) });
  const button = (type) => el("a", { class: "button", href: `/model${link(type)}`, text: OPENING.useForBoth(type) });
  return [...types].map(button);
}

/** The buttons next to "Try again". */
function otherButtons(error, subject, settings, { onplain, onram }) {
  if (error.about === ONE_TYPE) return oneType(settings);
  if (subject === NO_RAM) return RAM_SIZES.map((size) => ramButton(size, onram));
  if (subject === "engine") return otherEngines(settings);
  if (subject === "model" || !settings.hasChoices) return [];
  return [el("button", { type: "button", text: OPENING.withoutSettings, onclick: () => onplain(subject) })];
}

function ramButton(size, onram) {
  return el("button", { type: "button", text: OPENING.noRam.use(size), onclick: () => onram(size) });
}

function otherEngines(settings) {
  const others = ENGINES.filter(([name]) => name && name !== settings.chosen.engine);
  return others.map(([name, text]) => engineLink(settings, name, text));
}

function engineLink(settings, name, text) {
  return el("a", { class: "button", href: `/model${query(settings.queryFor(name))}`, text: OPENING.useEngine(text) });
}

/**
 * {node, heading}: what went wrong, what to do, and the buttons. onplain("settings", "machine" or "all") tries again
 * without them, onram("32G") with this RAM.
 */
export function failure(error, settings, { retry, ...handlers }) {
  const isCancelled = error.name === "AbortError";
  const subject = isCancelled ? "model" : subjectOf(error, settings);
  const message = isCancelled ? OPENING.cancelled : messageOf(error, subject, settings);
  const help = isCancelled ? null : helpFor(error, subject);
  const title = isCancelled ? OPENING.cancelledTitle : titleFor(error, subject);
  const heading = el("h2", { id: "failure-title", tabIndex: -1, text: title });
  const again = el("button", { type: "button", class: "primary", text: COMMON.tryAgain, onclick: retry });
  const node = el(
    "section",
    { class: "panel failure", "aria-labelledby": "failure-title" },
    heading,
    el("p", { class: isCancelled ? "" : "error", role: "alert", text: message }),
    help && el("p", { text: help }),
    el("div", { class: "buttons" }, subject !== NO_RAM && again, otherButtons(error, subject, settings, handlers)),
  );
  return { node, heading };
}
