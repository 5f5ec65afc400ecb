// The controls: quantisation, context and KV cache; the other settings of the engine are under "More settings".

import { cacheFlags, cacheName, cacheTypes } from "./cache_names.js";
import { contextControl } from "./context_control.js";
import { el } from "./dom.js";
import { CONTROL_KEYS, engineLabel, engineNamed, ENGINES } from "./engines.js";
import { COMMON, SETTINGS } from "./texts.js";

const KNOWN = new Set(["engine", "context", "quant", ...CONTROL_KEYS]);
const UNNAMED = "auto"; // a cache type that the engine chooses when it starts
const AUTO = ""; // the value of a menu's first entry
const ONE_CACHE = { key: "one_cache", kind: "note", need: "oneCache" };

const YES = new Set(["true", "yes", "on", "1", "t", "y"]); // accepted in a link

/** The settings of an engine except its weights, and the note about K and V after the second of them. */
function rowsOf(name) {
  const { controls = [], cache, groups } = engineNamed(name) ?? {};
  const last = cache?.keys.length > 1 ? cache.keys.at(-1) : null;
  const others = controls.filter((row) => !groups.weights.includes(row.key));
  return others.flatMap((row) => (row.key === last ? [row, ONE_CACHE] : [row]));
}

/** Fills a menu and selects a value. The first entry leaves the choice to EdgeKit. */
function fill(select, auto, rows, value) {
  const options = [[AUTO, auto], ...rows];
  if (!options.some(([one]) => one === value)) options.push([value, value]);
  const now = JSON.stringify(options);
  if (select.dataset.drawn !== now) {
    select.dataset.drawn = now;
    select.replaceChildren(...options.map(([one, text]) => el("option", { value: one, text })));
  }
  select.value = value;
}

/** The menu of quantisations. Calls onweights(flags, event), with {} for EdgeKit's choice. */
function quantControl(settings, onweights) {
  const select = el("select", { id: "set-quant" });
  let rows = [];
  select.addEventListener("input", (event) => {
    const row = rows.find((one) => one.quant === select.value);
    onweights(row?.flags ?? {}, event);
  });
  const show = ({ ladder, quantization }) => {
    rows = ladder.rows.filter((row) => Object.keys(row.flags).length);
    const isAuto = !Object.keys(settings.weights).length;
    const value = isAuto ? AUTO : (ladder.chosenRow()?.quant ?? Object.values(settings.weights)[0]);
    const best = isAuto ? quantization : ladder.rows.find((row) => row.is_chosen)?.quant;
    const texts = rows.map((row) => [row.quant, SETTINGS.quantizationOption(row.quant, row.download_bytes)]);
    fill(select, best ? SETTINGS.valueAuto(best) : COMMON.auto, texts, value);
  };
  const node = el(
    "div",
    { class: "control wide" },
    el("label", { htmlFor: select.id, text: SETTINGS.quantization }),
    select,
  );
  return { node, show };
}

/** The menu of KV cache types, one for K and V; if they differ, an entry names both. */
function cacheControl(settings, oncache) {
  const select = el("select", { id: "set-cache" });
  select.addEventListener("input", (event) => {
    const { keys, also } = engineNamed(settings.engine).cache;
    const taken = Object.fromEntries([...keys, ...Object.keys(also)].map((key) => [key, null]));
    oncache(select.value === AUTO ? taken : cacheFlags(select.value, settings.engine), event);
  });
  const node = el("div", { class: "control wide" }, el("label", { htmlFor: select.id, text: SETTINGS.cache }), select);
  const show = ({ engine }) => {
    const { keys = [] } = engineNamed(engine)?.cache ?? {};
    node.hidden = keys.length === 0;
    const isAuto = keys.every((key) => settings.isAuto(key));
    const now = cacheName(settings);
    const isNamed = isAuto && now !== UNNAMED;
    const rows = cacheTypes(engine).map((one) => [one, one]);
    fill(select, isNamed ? SETTINGS.valueAuto(now) : COMMON.auto, rows, isAuto ? AUTO : now);
  };
  return { node, show };
}

/** Facts about the model and the machine that some settings need. */
function has(need, facts) {
  return !need || Boolean(facts[need]);
}

const own = (row, facts) => {
  const fact = row.fact ? facts.taken?.[row.fact] : undefined;
  if (fact === true || fact === false) return SETTINGS.onOff(row.default, fact);
  return fact ?? row.default ?? "";
};

/** A menu; its first entry is the engine's default. */
function menu(row, onpick) {
  const first = el("option", { value: "" });
  const others = row.values.filter((value) => value !== row.default);
  const options = others.map((value) => el("option", { value, text: value }));
  const select = el("select", { id: `set-${row.key}` }, first, options);
  select.addEventListener("input", (event) => onpick(row.key, select.value || null, event));
  const show = (value, isAuto, facts) => {
    const engines = own(row, facts);
    const isSettled = isAuto && value !== null && String(value) !== row.default;
    first.textContent = isSettled ? SETTINGS.valueAuto(value) : String(engines);
    select.value = isAuto || value === row.default ? "" : String(value);
    if (select.selectedIndex < 0) select.append(el("option", { value, text: value, selected: true }));
  };
  return { input: select, show };
}

/** A field for a whole number. It explains and then drops anything else. */
function number(row, onpick) {
  const hint = el("p", { id: `hint-${row.key}`, class: "hint wrong" });
  const limits = { type: "number", min: row.least, max: row.most, step: 1 };
  const input = el("input", { id: `set-${row.key}`, ...limits, "aria-describedby": hint.id });
  const accepted = SETTINGS.wholeNumber(row.least, row.most);
  let inForce = "";
  input.addEventListener("input", (event) => {
    const { valid } = input.validity;
    input.setAttribute("aria-invalid", String(!valid));
    hint.textContent = valid ? "" : accepted;
    if (!valid) return;
    inForce = input.value && String(Number(input.value)); // the field accepts 1e3, the flag does not
    onpick(row.key, inForce || null, event);
  });
  input.addEventListener("blur", () => {
    input.setAttribute("aria-invalid", "false");
    input.value = inForce;
  });
  const show = (value, isAuto, facts) => {
    input.placeholder = String((isAuto ? value : null) ?? own(row, facts));
    inForce = isAuto ? "" : value;
    if (document.activeElement === input) return;
    input.value = inForce;
    hint.textContent = ""; // the invalid entry is gone
  };
  return { input, hint, show };
}

function share(row, onpick) {
  const input = el("input", { id: `set-${row.key}`, type: "range", min: 0.5, max: 1, step: 0.01 });
  const told = el("output", { htmlFor: input.id });
  const say = (part, isAuto) => (told.textContent = SETTINGS.percent(Math.round(100 * Number(part)), isAuto));
  input.addEventListener("input", (event) => {
    say(input.value, false);
    onpick(row.key, input.value, event);
  });
  const show = (value, isAuto) => {
    input.value = value ?? row.default;
    say(value ?? row.default, isAuto);
  };
  return { input, beside: told, show };
}

function toggle(row, onpick) {
  const input = el("input", { id: `set-${row.key}`, type: "checkbox" });
  input.addEventListener("input", (event) => onpick(row.key, input.checked ? true : null, event));
  return { input, isInline: true, show: (value) => (input.checked = YES.has(String(value).toLowerCase())) };
}

/** A slider for a number of layers, and a checkbox that leaves the choice to EdgeKit. */
function layers(row, onpick) {
  const input = el("input", { id: `set-${row.key}`, type: "range", min: 0, step: 1 });
  const auto = el("input", { type: "checkbox", id: `auto-${row.key}` });
  const told = el("output", { htmlFor: input.id });
  let most = 0;
  const word = (count) => (row.extra && count === most ? "all" : String(count));
  const say = (count) => (told.textContent = SETTINGS.layers(count, most));
  input.addEventListener("input", (event) => {
    auto.checked = false;
    say(Number(input.value));
    onpick(row.key, word(Number(input.value)), event);
  });
  auto.addEventListener("input", (event) => {
    onpick(row.key, auto.checked ? null : word(Number(input.value)), event);
  });
  const show = (value, isAuto, facts) => {
    most = facts.layers + row.extra;
    input.max = most;
    const isAll = value === "all" || value === "auto" || (value === null && row.extra && facts.onGpu);
    const count = isAll ? most : Math.min(most, Number(value ?? 0));
    input.value = count;
    auto.checked = isAuto;
    say(count);
  };
  const choice = el("label", { class: "check small" }, auto, COMMON.auto);
  return { input, beside: told, above: choice, show };
}

/** A note below settings. */
function note({ need }) {
  const node = el("p", { class: "hint" });
  return { node, show: (_value, _isAuto, facts) => (node.textContent = facts[need]) };
}

const KINDS = { note, menu, number, share, switch: toggle, layers };

function framed(row, made) {
  if (made.node) return made.node;
  const label = el("label", { htmlFor: made.input.id, text: row.label });
  if (made.isInline) return el("div", { class: "control inline" }, made.input, label);
  const head = el("div", { class: "row" }, label, made.above);
  const body = made.beside ? el("div", { class: "row" }, made.input, made.beside) : made.input;
  return el("div", { class: `control${row.is_wide || made.beside ? " wide" : ""}` }, head, body, made.hint);
}

/** Settings of the address that have no control, each with a button to remove it. */
function others(settings, onpick) {
  const keys = Object.keys(settings.chosen).filter((key) => !KNOWN.has(key));
  if (!keys.length) return null;
  const chip = (key) => {
    const props = { type: "button", class: "quiet small", text: COMMON.remove, "aria-label": COMMON.removeNamed(key) };
    const remove = el("button", { ...props, onclick: (event) => onpick(key, null, event) });
    return el("li", {}, el("code", { text: `${key} = ${settings.chosen[key]}` }), remove);
  };
  const title = el("p", { class: "label", text: SETTINGS.fromLink });
  return el("div", { class: "control wide" }, title, el("ul", { class: "set-by-link" }, keys.map(chip)));
}

/**
 * {node, show(facts)}. Calls onpick(key, value or null, event) for every change, onweights(flags, event) for another
 * quantisation, oncache(flags, event) for another cache type.
 */
export function controls(settings, { onpick, onweights, oncache }) {
  const quant = quantControl(settings, onweights);
  const context = contextControl((count, event) => onpick("context", count === null ? null : String(count), event));
  const cache = cacheControl(settings, oncache);
  const engine = engineMenu(onpick);
  const grid = el("div", { class: "control-grid" });
  const isSet = Object.keys(settings.chosen).some((key) => !["context", "engine", "quant"].includes(key));
  const more = el(
    "details",
    { class: "unfold more-settings", open: isSet },
    el("summary", { text: SETTINGS.more }),
    el("div", { class: "controls" }, engine.node, grid),
  );
  let rows = [];
  let drawn = "";
  const build = (facts) => {
    const wanted = rowsOf(facts.engine).filter((row) => has(row.need, facts));
    const unknown = Object.keys(settings.chosen).filter((key) => !KNOWN.has(key));
    const now = JSON.stringify([facts.engine, wanted.map((row) => row.key), unknown]);
    if (now === drawn) return;
    drawn = now;
    const focused = grid.contains(document.activeElement) ? document.activeElement : null;
    rows = wanted.map((row) => ({ row, made: KINDS[row.kind](row, onpick) }));
    const nodes = rows.map(({ row, made }) => framed(row, made));
    grid.replaceChildren(...nodes, ...[others(settings, onpick)].filter(Boolean));
    if (focused) ((focused.id && grid.querySelector(`#${focused.id}`)) || engine.select).focus();
  };
  const show = (facts) => {
    build(facts);
    quant.show(facts);
    cache.show(facts);
    engine.show(settings, facts);
    context.show({ ...facts, isAuto: settings.isAuto("context") });
    for (const { row, made } of rows) made.show(settings.value(row.key), settings.isAuto(row.key), facts);
  };
  const showQuant = (facts) => quant.show(facts);
  return { node: el("div", { class: "controls" }, quant.node, context.node, cache.node, more), show, showQuant };
}

function engineMenu(onpick) {
  const select = el("select", { id: "set-engine" }, ...ENGINES.map(([value, text]) => el("option", { value, text })));
  select.addEventListener("input", (event) => onpick("engine", select.value || null, event));
  const show = (settings, facts) => {
    const named = engineLabel(facts.engine);
    select.options[0].textContent = settings.isAuto("engine") && named ? SETTINGS.engineAuto(named) : COMMON.auto;
    select.value = settings.chosen.engine ?? "";
  };
  const node = el(
    "div",
    { class: "control wide" },
    el("label", { htmlFor: "set-engine", text: COMMON.engine }),
    select,
  );
  return { node, select, show };
}
