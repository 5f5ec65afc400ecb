// A reference that was typed -> a first answer: progress while it is read, errors with what to do.

import { job, query } from "./api.js";
import { ONE_TYPE } from "./cache_names.js";
import { el } from "./dom.js";
import { engineLabel, ENGINES } from "./engines.js";
import { COMMON, OPENING } from "./texts.js";

const QUIET_MS = 150; // what is quicker shows no progress
const RAM_SIZES = ["16G", "32G", "64G", "128G"]; // offered where the machine's RAM is not known
const NO_RAM = "ram"; // what an error is about
const NO_ENGINE = new Set(["RefusedError", "HardwareError", "UnknownArchitectureError"]);

/**
 * Shows how far it is, with a way to call it off, until both are there: the check, and the facts that
 * `further(check, signal)` gives. The place has its size already: nothing moves when the answer comes.
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

/** Whether the model, a setting, the machine or the engine is at fault, and so what can be done about it. */
function subjectOf({ type, about }, settings) {
  if (about === NO_RAM) return NO_RAM;
  if (NO_ENGINE.has(type)) return "engine";
  if (type !== "UsageError" || !settings.isSaid) return "model";
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

/** The server's sentence; where it names a flag that the page has a button for, the page's own. */
function messageOf(error, subject, { chosen }) {
  return subject === NO_RAM ? OPENING.noRam.message(engineLabel(chosen.engine)) : error.message;
}

/** Where keys and values must have one cache type: each of the two, for both. */
function oneType(settings) {
  const halves = ["type_k", "type_v"];
  const types = new Set(halves.map((key) => settings.chosen[key] ?? "f16"));
  const link = (type) => query({ ...settings.query(), ...Object.fromEntries(halves.map((key) => [key, type])) });
  const button = (type) => el("a", { class: "button", href: `/model${link(type)}`, text: OPENING.useForBoth(type) });
  return [...types].map(button);
}

/** What can be done beside trying again. */
function waysOut(error, subject, settings, { onplain, onram }) {
  if (error.about === ONE_TYPE) return oneType(settings);
  if (subject === NO_RAM) return RAM_SIZES.map((size) => ramButton(size, onram));
  if (subject === "engine") return otherEngines(settings);
  if (subject === "model" || !settings.isSaid) return [];
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
 * {node, heading}: what went wrong, what to do, and a way to try again. onplain("settings", "machine" or "all") asks
 * without them, onram("32G") with this RAM.
 */
export function failure(error, settings, { retry, ...ways }) {
  const isCancelled = error.name === "AbortError";
  const subject = isCancelled ? "model" : subjectOf(error, settings);
  const told = isCancelled ? OPENING.cancelled : messageOf(error, subject, settings);
  const help = isCancelled ? null : helpFor(error, subject);
  const title = isCancelled ? OPENING.cancelledTitle : titleFor(error, subject);
  const heading = el("h2", { id: "failure-title", tabIndex: -1, text: title });
  const again = el("button", { type: "button", class: "primary", text: COMMON.tryAgain, onclick: retry });
  const node = el(
    "section",
    { class: "panel failure", "aria-labelledby": "failure-title" },
    heading,
    el("p", { class: isCancelled ? "" : "error", role: "alert", text: told }),
    help && el("p", { text: help }),
    el("div", { class: "buttons" }, subject !== NO_RAM && again, waysOut(error, subject, settings, ways)),
  );
  return { node, heading };
}
