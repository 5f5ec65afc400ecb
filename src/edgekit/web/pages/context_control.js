// The context as a slider on a log scale, next to a field for the exact number.

import { el } from "./dom.js";
import { tokens } from "./format.js";
import { COMMON, SETTINGS } from "./texts.js";

const LEAST = 512;
const STEPS = 240; // of the slider: about 3 % each
const CELL = 256; // engines round contexts up to this
const FALLBACK_MOST = 131072; // for a model without a trained context
const UNITS = { k: 1024, m: 1024 ** 2 };
const MOST = 2 ** 31 - 1;

/** "32k", "32,768" -> 32768; null if it is not a number of tokens. */
export function readTokens(text) {
  const found = /^(\d+(?:\.\d+)?)([km]?)$/i.exec(text.replaceAll(/[,\s_]/g, ""));
  if (!found) return null;
  const number = Number(found[1]) * (UNITS[found[2].toLowerCase()] ?? 1);
  return Number.isInteger(number) && number >= 1 && number <= MOST ? number : null;
}

/** The tokens at a position of the slider: a multiple of CELL, or exactly a mark that is near. */
function tokensAt(place, most, marks) {
  const exact = LEAST * (most / LEAST) ** (place / STEPS);
  const near = marks.find((mark) => Math.abs(placeOf(mark, most) - place) <= 0.5);
  if (near) return near;
  return Math.min(most, Math.max(LEAST, Math.round(exact / CELL) * CELL));
}

/** Moves by at least one cell, so that the slider does not stick where its steps are smaller. */
function nextTokens(place, { most, marks, context, place: before }) {
  const count = tokensAt(place, most, marks);
  if (count !== context || place === before) return count;
  return Math.min(most, Math.max(LEAST, count + (place > before ? CELL : -CELL)));
}

function placeOf(count, most) {
  const bound = Math.min(most, Math.max(LEAST, count));
  return (STEPS * Math.log(bound / LEAST)) / Math.log(most / LEAST);
}

/** The right end of the slider: twice the trained context. */
function mostOf(native, context) {
  return Math.max(2 * (native ?? FALLBACK_MOST), context ?? 0, 2 * LEAST);
}

/** The control; `show({context, native, largest, isAuto})` sets it. `onpick(tokens or null, event)`. */
export function contextControl(onpick) {
  const state = { most: 2 * FALLBACK_MOST, marks: [] };
  const range = { type: "range", min: 0, max: STEPS, step: 1 };
  const slider = el("input", { id: "context-slider", ...range, "aria-label": SETTINGS.contextSlider });
  const digits = { inputMode: "numeric", autocomplete: "off", maxLength: 12 };
  const field = el("input", { id: "context", ...digits, "aria-describedby": "context-hint" });
  const hint = el("p", { id: "context-hint", class: "hint" });
  const ticks = el("div", { class: "ticks" });
  const auto = el("button", { type: "button", class: "quiet small", text: COMMON.auto, title: SETTINGS.contextAuto });
  auto.addEventListener("click", (event) => onpick(null, event));
  slider.addEventListener("input", (event) => {
    const count = nextTokens(Number(slider.value), state);
    field.value = tokens(count);
    tell(slider, count);
    onpick(count, event);
  });
  field.addEventListener("change", (event) => typed(field, hint, (count) => onpick(count, event)));
  field.addEventListener("blur", () => putBack(field, state.context));
  const node = el(
    "div",
    { class: "control wide" },
    el("div", { class: "row" }, el("label", { htmlFor: "context", text: SETTINGS.context }), auto),
    el("div", { class: "row" }, slider, field),
    ticks,
    hint,
  );
  return { node, show: (now) => show({ state, slider, field, ticks, hint, auto, onpick }, now) };
}

function typed(field, hint, accept) {
  const count = readTokens(field.value);
  field.setAttribute("aria-invalid", String(count === null));
  hint.classList.toggle("wrong", count === null);
  if (count === null) hint.textContent = SETTINGS.contextWrong(field.value.slice(0, 20));
  else {
    field.value = tokens(count); // with thousands separators
    accept(count);
  }
}

/** Resets an invalid entry to the context in use. */
function putBack(field, context) {
  if (field.getAttribute("aria-invalid") !== "true") return;
  field.setAttribute("aria-invalid", "false");
  field.value = tokens(context);
}

function tellHint(field, hint, text) {
  field.setAttribute("aria-invalid", "false");
  hint.classList.remove("wrong");
  hint.textContent = text;
}

function tell(slider, count) {
  slider.setAttribute("aria-valuetext", COMMON.tokens(count));
}

function show(parts, { context, native, largest, isAuto, because }) {
  const { state, slider, field, hint, auto } = parts;
  state.most = mostOf(native, context);
  state.marks = [native, largest].filter(Boolean);
  slider.value = placeOf(context, state.most);
  Object.assign(state, { context, place: Number(slider.value) });
  tell(slider, context);
  const isTyping = document.activeElement === field && field.getAttribute("aria-invalid") === "true";
  if (document.activeElement !== field) field.value = tokens(context);
  auto.setAttribute("aria-pressed", String(isAuto));
  if (!isTyping) tellHint(field, hint, isAuto && because ? SETTINGS.contextBecause(because) : "");
  showTicks(parts, native, largest);
}

/** The trained context and the largest that fits, as buttons at their positions. */
function showTicks({ state, ticks, onpick }, native, largest) {
  const wanted = JSON.stringify([state.most, native, largest]);
  if (ticks.dataset.drawn === wanted) return;
  ticks.dataset.drawn = wanted;
  const isOne = native && native === largest;
  const rows = isOne ? [[native, "both"]] : [[native, "native"], [largest, "largest"]];
  const known = rows.filter(([count]) => count);
  ticks.replaceChildren(...known.map(([count, kind]) => tick(count, kind, state.most, onpick)));
}

function tick(count, kind, most, onpick) {
  const word = SETTINGS.ticks[kind];
  const mark = el("span", { class: "tick", "aria-hidden": "true" });
  mark.style.left = `${(100 * placeOf(count, most)) / STEPS}%`;
  const words = {
    title: tokens(count),
    text: SETTINGS.tick(word, count),
    "aria-label": SETTINGS.tickLabel(word, count),
  };
  const button = el("button", {
    type: "button",
    class: "quiet small",
    ...words,
    onclick: (event) => onpick(count, event),
  });
  return el("div", { class: `tick-row ${kind === "native" ? "native" : "largest"}` }, mark, button);
}
