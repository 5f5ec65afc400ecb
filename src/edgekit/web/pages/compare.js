// The compare page: two or three models, or engines, on one machine at one context.

import { call, job } from "./api.js";
import { bar, legend, verdict } from "./bar.js";
import { announce, copy, el, refill } from "./dom.js";
import { COMPARED, engineLabel, engineNamed, engineWords, verdictWord } from "./engines.js";
import { bytes, tokens } from "./format.js";
import { machine, machinePicker } from "./machine.js";
import { replaceQuery, route } from "./router.js";
import { COMMON, COMPARE, ERRORS } from "./texts.js";

const LEAST_COLUMNS = 2;
const MOST_COLUMNS = 3;
const USUAL_CONTEXT = "16384"; // the same for all columns, as edgekit compare has it
const ENGINES = { "": COMMON.auto, ...Object.fromEntries(COMPARED.map((name) => [name, engineLabel(name)])) };
const CANNOT_RUN = new Set(["RefusedError", "HardwareError"]);
const RANKS = { passed: 3, warning: 2, failed: 1, refused: 0 };
const USUAL_MIX = "Q4_K_M"; // what llama.cpp's bill takes where the files are no GGUF
const CACHE_AT = [8192, 32768];
const LABELS = COMPARE.rows;

// What a row shows of a column, and which value of it is the better one.
const ROWS = [
  { label: LABELS.verdict, show: shownVerdict, value: (c) => RANKS[c.status], best: "most", word: COMPARE.best.best },
  { label: LABELS.summary, show: inWords },
  { label: LABELS.engine, show: (c) => c.check && engineWords(c.check.engine) },
  { label: LABELS.memory, show: shownBars },
  { label: LABELS.weights, ...inBytes((c) => c.check?.estimate.model_bytes) },
  { label: LABELS.cache, ...inBytes((c) => cacheBytes(c.check?.estimate)) },
  { label: LABELS.compute, ...inBytes((c) => c.check?.estimate.compute_bytes) },
  { label: LABELS.total, ...inBytes((c) => c.check?.estimate.total_bytes) },
  { label: LABELS.maxContext, ...inTokens((c) => c.check?.max_context), show: shownLargest },
  ...CACHE_AT.map((at) => ({ label: LABELS.cacheAt(at), ...inBytes((c) => c.caches?.[at]) })),
  { label: LABELS.cacheNative, ...inBytes((c) => c.caches?.native) },
  { label: LABELS.speed, show: shownSpeed, value: (c) => c.plan?.speed?.typical, best: "most", word: COMPARE.best.fastest },
  { label: LABELS.quantization, show: quantization },
  { label: LABELS.parameters, show: shownParameters },
  { label: LABELS.native, ...inTokens((c) => c.check?.native_context) },
  { label: LABELS.basis, show: (c) => c.check?.basis },
  { label: LABELS.command, show: shownCommand },
];

route("/compare", { title: COMPARE.title, render });

function render(root, query, { signal }) {
  const page = { columns: columnsOf(query), signal, context: contextOf(query) };
  const grid = el("div", { class: "compare-columns" });
  page.grid = grid;
  page.scale = el("div", { class: "compare-scale" });
  page.adder = el("button", { type: "button", text: COMPARE.add, onclick: () => addColumn(page) });
  root.append(
    el("h1", { text: COMPARE.title }),
    el("p", { class: "muted", text: COMPARE.lead }),
    settings(page),
    page.scale,
    grid,
  );
  machine.addEventListener("change", () => askAll(page), { signal });
  drawColumns(page);
  askAll(page);
}

function columnsOf(query) {
  const engines = query.getAll("engine").flatMap((text) => text.split(","));
  const found = query.getAll("ref").slice(0, MOST_COLUMNS);
  while (found.length < LEAST_COLUMNS) found.push("");
  return found.map((ref, at) => ({ ref, engine: Object.hasOwn(ENGINES, engines[at]) ? engines[at] : "" }));
}

function contextOf(query) {
  return query.has("context") ? query.get("context") : USUAL_CONTEXT;
}

function settings(page) {
  const context = el("input", {
    id: "compare-context", type: "text", inputmode: "numeric", autocomplete: "off", value: page.context,
    maxLength: 20, "aria-describedby": "compare-context-note",
  });
  const ask = () => {
    page.context = context.value.trim();
    askAll(page);
  };
  context.addEventListener("change", ask);
  const form = el(
    "form",
    { class: "field", "aria-label": COMPARE.shared, onsubmit: (event) => event.preventDefault() },
    el("label", { for: "compare-context", text: COMPARE.context }),
    context,
    el("small", { id: "compare-context-note", text: COMPARE.contextHint }),
  );
  const link = (event) => copy(location.href, event.currentTarget);
  const buttons = el("div", { class: "buttons" }, page.adder, el("button", { type: "button", text: COMMON.copyLink, onclick: link }));
  return el("div", { class: "compare-settings panel" }, machinePicker(page.signal), form, buttons);
}

// The columns as the address has them: what another tab needs to show the same.
function keepInAddress(page) {
  const query = new URLSearchParams();
  for (const column of page.columns) query.append("ref", column.ref);
  if (page.columns.some((column) => column.engine)) {
    query.set("engine", page.columns.map((column) => column.engine).join(","));
  }
  query.set("context", page.context);
  replaceQuery(query);
}

function drawColumns(page) {
  page.grid.replaceChildren(...page.columns.map((column, at) => drawnColumn(page, column, at)));
  page.grid.style.setProperty("--rows", ROWS.length);
  page.adder.disabled = page.columns.length >= MOST_COLUMNS;
}

function drawnColumn(page, column, at) {
  const name = `compare-column-${at}`;
  column.title = el("h2", { id: name, tabIndex: -1, text: titleOf(column, at) });
  column.state = el("div", { class: "compare-state" });
  column.cells = ROWS.map((row) => el("dd"));
  const rows = ROWS.map((row, index) => el("div", { class: "compare-cell" }, el("dt", { text: row.label }), column.cells[index]));
  column.list = el("dl", { class: "compare-list" }, ...rows);
  return el(
    "section",
    { class: "compare-column panel", "aria-labelledby": name },
    column.title,
    editor(page, column, at),
    column.state,
    column.list,
  );
}

function titleOf(column, at) {
  return column.check?.model ?? (column.ref || COMPARE.column(at + 1));
}

function editor(page, column, at) {
  const model = el("input", {
    id: `compare-model-${at}`, type: "text", value: column.ref, autocomplete: "off", autocapitalize: "off",
    placeholder: COMPARE.modelExample,
  });
  model.spellcheck = false;
  const engine = el(
    "select",
    { id: `compare-engine-${at}` },
    ...Object.entries(ENGINES).map(([value, text]) => el("option", { value, text })),
  );
  engine.value = column.engine;
  const ask = () => {
    if (model.value.trim() === column.ref && engine.value === column.engine) return;
    Object.assign(column, { ref: model.value.trim(), engine: engine.value });
    askColumn(page, column);
  };
  engine.addEventListener("change", ask);
  model.addEventListener("change", ask);
  return el(
    "form",
    { class: "compare-editor", "aria-label": COMPARE.column(at + 1), onsubmit: (event) => { event.preventDefault(); ask(); } },
    el("div", { class: "field" }, el("label", { for: model.id, text: COMPARE.model }), model),
    el("div", { class: "field" }, el("label", { for: engine.id, text: COMMON.engine }), engine),
    el("div", { class: "buttons" }, ...columnButtons(page, column, at)),
  );
}

function columnButtons(page, column, at) {
  column.link = el("a", { class: "button", text: COMPARE.open, hidden: true });
  const remove = el("button", { type: "button", text: COMMON.remove, "aria-label": COMPARE.removeColumn(at + 1), onclick: () => removeColumn(page, column) });
  remove.hidden = page.columns.length <= LEAST_COLUMNS;
  return [column.link, remove];
}

function addColumn(page) {
  const last = page.columns.at(-1);
  page.columns.push({ ref: last.ref, engine: nextEngine(page.columns, last.ref) });
  redraw(page);
  askColumn(page, page.columns.at(-1));
  document.getElementById(`compare-model-${page.columns.length - 1}`).focus();
}

// A further column begins as the same model on an engine that is not there yet.
function nextEngine(columns, ref) {
  const taken = new Set(columns.filter((one) => one.ref === ref).map((one) => one.engine || one.check?.engine.name));
  return Object.keys(ENGINES).find((name) => name && !taken.has(name)) ?? "";
}

function removeColumn(page, column) {
  column.asked?.abort();
  page.columns = page.columns.filter((one) => one !== column);
  redraw(page);
  keepInAddress(page);
  page.adder.focus();
}

// Columns that are drawn anew keep their answers.
function redraw(page) {
  drawColumns(page);
  page.columns.forEach((column) => showState(page, column));
  showRows(page);
}

function askAll(page) {
  page.columns.forEach((column) => askColumn(page, column));
}

// Every column asks on its own: what goes wrong in one is told there, and only there.
async function askColumn(page, column) {
  column.asked?.abort();
  const asked = new AbortController();
  const signal = AbortSignal.any([asked.signal, page.signal]);
  Object.assign(column, { asked, check: null, fit: null, caches: null, plan: null, facts: null, error: null, status: null, isAsking: Boolean(column.ref) });
  column.progress = column.ref ? COMPARE.reading : null;
  keepInAddress(page);
  const show = () => { showState(page, column); showRows(page); };
  show();
  if (!column.ref) return;
  const fields = { model: column.ref, engine: column.engine, context: page.context, ...chosenMachine() };
  try {
    column.check = await job("check", fields, {
      signal,
      onProgress: (line) => { if (!signal.aborted) { column.progress = line; showState(page, column); } },
    });
    column.status = column.check.status;
  } catch (error) {
    if (signal.aborted) return;
    column.error = error;
    column.status = CANNOT_RUN.has(error.type) ? "refused" : null;
  }
  if (signal.aborted) return;
  column.progress = null;
  column.isAsking = Boolean(column.check);
  show();
  const outcome = column.error ? column.error.message : verdictWord(column.status, column.check.engine.name);
  announce(COMPARE.result(titleOf(column, page.columns.indexOf(column)), outcome));
  if (!column.check) return;
  await askFurther(column, fields, signal, show);
  if (signal.aborted) return;
  column.isAsking = false;
  show();
}

function chosenMachine() {
  return { device: machine.device, ram: machine.ram, vram: machine.vram, cpu: machine.cpu };
}

// What the verdict does not say. One that has no answer leaves the others alone.
async function askFurther(column, fields, signal, show) {
  const settled = { ...column.check.flags, model: column.ref, engine: column.check.engine.name };
  const part = async (name, asked) => {
    try {
      const found = await asked;
      if (!signal.aborted) column[name] = found;
    } catch (error) {
      if (!signal.aborted) column[name] = { problem: error.message };
    }
    if (!signal.aborted) show();
  };
  await part("fit", call("fit", { ...settled, ...chosenMachine() }, { signal }));
  if (signal.aborted) return; // the column asks something else by now
  await Promise.all([
    part("facts", factsOf(column, signal)),
    part("caches", cachesOf(settled, column.check.native_context, signal)),
  ]);
  if (signal.aborted) return;
  await part("plan", job("plan", { ...fields, engine: settled.engine, mix: plannedMix(column), no_drafter: true }, { signal }));
}

// Of the catalog's models no file is opened: what is known about them stands in it.
function factsOf({ ref, fit }, signal) {
  const id = /^catalog:(.+)$/.exec(fit.reference ?? ref)?.[1];
  return id ? call(`catalog/${id}`, {}, { signal }) : call("inspect", { model: ref }, { signal });
}

async function cachesOf(settled, native, signal) {
  const at = async (context) => cacheBytes(await call("estimate", { ...settled, context: String(context) }, { signal }));
  const asked = { ...Object.fromEntries(CACHE_AT.filter((n) => native === null || n <= native).map((n) => [n, n])), native };
  const found = await Promise.all(
    Object.entries(asked).filter(([, n]) => n).map(async ([name, n]) => [name, await at(n)]),
  );
  return Object.fromEntries(found);
}

function cacheBytes(bill) {
  return bill ? bill.kv_bytes + bill.kv_swa_bytes + bill.recurrent_bytes : null;
}

const quantizesGguf = (column) => Boolean(engineNamed(column.check.engine.name)?.quantizes_gguf);

function plannedMix(column) {
  return quantizesGguf(column) && !column.facts?.mix ? mixOf(column) : null;
}

function mixOf(column) {
  return column.check.flags.mix ?? column.facts?.mix ?? USUAL_MIX;
}

function showState(page, column) {
  const at = page.columns.indexOf(column);
  column.title.textContent = titleOf(column, at);
  column.link.hidden = !column.check;
  if (column.check) column.link.href = `/model?${modelQuery(page, column)}`;
  column.list.setAttribute("aria-busy", String(Boolean(column.progress)));
  refill(column.state, stateNodes(page, column), column.title);
}

function modelQuery(page, column) {
  const query = new URLSearchParams({ ref: column.ref, engine: column.check.engine.name });
  if (page.context) query.set("context", page.context);
  for (const [name, value] of Object.entries(chosenMachine())) {
    for (const text of [value ?? []].flat()) if (text) query.append(name, text);
  }
  return query;
}

function stateNodes(page, column) {
  if (!column.ref) return [el("p", { class: "muted", text: COMPARE.empty })];
  if (column.progress) {
    const cancel = () => {
      column.asked.abort();
      Object.assign(column, { progress: null, isAsking: false, error: new Error(ERRORS.cancelled) });
      showState(page, column);
      showRows(page);
    };
    return [
      el("p", { class: "progress", role: "status", text: column.progress }),
      el("button", { type: "button", text: COMMON.cancel, onclick: cancel }),
    ];
  }
  if (column.error && column.status !== "refused") {
    return [
      el("p", { class: "error", role: "alert", text: column.error.message }),
      el("button", { type: "button", text: COMMON.tryAgain, onclick: () => askColumn(page, column) }),
    ];
  }
  return [];
}

function showRows(page) {
  showScale(page);
  ROWS.forEach((row, index) => {
    const values = page.columns.map((column) => row.value?.(column) ?? null);
    const best = bestOf(row, values);
    page.columns.forEach((column, at) => {
      const shown = row.show(column, page);
      const nodes = shown === null || shown === undefined || shown === "" ? [emptyCell(column)] : [shown].flat();
      if (best !== null && values[at] === best) nodes.splice(1, 0, el("strong", { class: "compare-best", text: row.word }));
      fill(column.cells[index], nodes);
    });
  });
}

// Only what is new: a button that somebody holds, or that says "copied", stays.
const filled = new WeakMap(); // cell -> what was put into it

function fill(cell, nodes) {
  const now = nodes.map((node) => node.outerHTML ?? node).join("");
  if (filled.get(cell) === now) return;
  filled.set(cell, now);
  cell.replaceChildren(...nodes);
}

// The better value, where there is more than one and they are not all the same.
function bestOf(row, values) {
  const known = values.filter((value) => value !== null);
  if (!row.best || new Set(known).size < 2) return null;
  return row.best === "least" ? Math.min(...known) : Math.max(...known);
}

/** What is still asked for is not unknown, and of a model that cannot run there is nothing to know. */
function emptyCell(column) {
  const text = column.isAsking ? COMPARE.pending : column.check ? COMPARE.notKnown : column.error ? COMPARE.noAnswer : "";
  return el("span", { class: "muted", text });
}

function inBytes(value) {
  return { value, show: (column) => shownNumber(value(column), bytes), best: "least", word: COMPARE.best.lowest };
}

function inTokens(value) {
  return { value, show: (column) => shownNumber(value(column), tokens), best: "most", word: COMPARE.best.highest };
}

function shownNumber(number, told) {
  return number === null || number === undefined ? null : told(number);
}

function shownVerdict(column) {
  if (!column.status) return null;
  const shown = [verdict(column.status, column.check?.engine.name)];
  if (column.status === "refused") shown.push(el("p", { text: column.error.message }));
  return shown;
}

function shownLargest({ check }) {
  return check && (check.max_context ? tokens(check.max_context) : COMMON.none);
}

function inWords({ check }) {
  return check?.headline;
}

function shownBars(column, page) {
  const bars = column.fit?.bars;
  return bars?.length ? bars.map((one) => bar(one, { scale: commonScale(page) })) : null;
}

function allBars(page) {
  return page.columns.flatMap((column) => column.fit?.bars ?? []);
}

// All bars of all columns are drawn against the same number of bytes.
function commonScale(page) {
  return Math.max(1, ...allBars(page).map((one) => Math.max(one.total_bytes, one.required_bytes)));
}

function showScale(page) {
  const bars = allBars(page);
  page.scale.replaceChildren(...(bars.length ? [legend(bars), el("p", { class: "muted small", text: COMPARE.scale(commonScale(page)) })] : []));
}

function shownSpeed(column) {
  const { plan } = column;
  if (!plan?.speed) return null;
  const { typical, decode, basis } = plan.speed;
  const how = COMPARE.speedBasis(decode, plan.variant.name, plan.cache.name, basis);
  return [COMPARE.speed(typical), el("p", { class: "muted", text: how })];
}

function quantization(column) {
  if (!column.check || !column.facts) return null;
  const named = quantizesGguf(column) ? mixOf(column) : storedAs(column.facts);
  const parameters = column.facts.parameters;
  const bits = parameters ? COMPARE.bitsPerWeight((column.check.estimate.model_bytes * 8) / parameters) : null;
  return [named, bits].filter(Boolean).join(", ");
}

function storedAs(facts) {
  const { method, format, bits } = facts.quantization ?? {};
  return facts.mix ?? [method ?? format, bits && COMPARE.bits(bits)].filter(Boolean).join(" ");
}

function shownParameters(column) {
  const { parameters, active_parameters: active } = column.facts ?? {};
  if (!parameters) return null;
  return COMPARE.parameters(parameters, active === parameters ? null : active);
}

function shownCommand(column) {
  const command = column.check?.command;
  if (!command) return column.check ? COMPARE.noCommand : null;
  return [
    el("pre", { class: "command", tabindex: "0", "aria-label": COMPARE.commandLabel }, el("code", { text: command })),
    el("button", { type: "button", text: COMPARE.copyCommand, onclick: (event) => copy(command, event.currentTarget) }),
  ];
}
