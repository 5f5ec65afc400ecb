// The rows of the compare page: what each shows of a column, and which value of it is the best one.

import { bar, verdict } from "./bar.js";
import { engineOf, modelQuery, statusOf, titleOf } from "./compare_columns.js";
import { copy, el } from "./dom.js";
import { engineLabel, engineWords } from "./engines.js";
import { gib, params, short } from "./format.js";
import { COMMON, COMPARE } from "./texts.js";

const RANKS = { passed: 3, warning: 2, failed: 1, refused: 0 };
const MOST_BARS = 3; // memories of a column, the fullest ones
const LONGEST_BAR = 1.6; // times the memory itself: what needs more is cut off, so that the others stay readable
const KIB = 1024;
const LABELS = COMPARE.rows;
const HINTS = COMPARE.hints;

/** 47104 -> "46K": whole K, rounded down. */
const contextText = (count) => short(count > KIB ? count - (count % KIB) : count);

/** The same, with the exact number for those who point. */
const contextWords = (count) => el("span", { title: COMMON.tokens(count), text: contextText(count) });

const figure = (...children) => el("span", { class: "compare-figure" }, ...children);

const below = (text) => text && el("small", { class: "compare-below", text });

/** The badge, and the sentence of the check. */
export function shownVerdict(column) {
  const status = statusOf(column);
  if (!status) return null;
  const { check, error } = column;
  const badge = verdict(status, engineOf(column), check?.runs_on);
  return [badge, el("p", { class: "compare-told", text: check ? check.headline : error.message })];
}

/** The check of a column that loads: only those are compared. */
const loaded = (column) => (column.check?.can_load ? column.check : null);

function shownSpeed(column) {
  const speed = loaded(column)?.speed;
  if (!speed) return null;
  const range = COMPARE.interval(speed.decode);
  return [
    figure(COMPARE.speed(speed.typical)),
    " ",
    below([COMPARE.speedUnit, range && `(${range})`].filter(Boolean).join(" ")),
  ];
}

/** The bars that decide, in their order; the others are counted. */
function shownBars(column, scales) {
  const all = column.check?.bars ?? [];
  if (!all.length) return null;
  const fullest = [...all].sort((a, b) => (b.utilization ?? 0) - (a.utilization ?? 0)).slice(0, MOST_BARS);
  const shown = all.filter((one) => fullest.includes(one)).map((one) => bar(one, { scale: scales.get(keyOf(one)) }));
  const left = all.length - shown.length;
  return left ? [...shown, below(COMPARE.moreMemories(left))] : shown;
}

const sizeOf = (one) => one.total_bytes ?? one.available_bytes + one.reserve_bytes;

/** One memory: the RAM of another machine is another one, unless it is of the same size. */
const keyOf = (one) => `${one.memory}/${sizeOf(one)}`;

/** Memory -> the bytes that the whole width of its bars means: the same in every column. */
export function scalesOf(columns) {
  const scales = new Map();
  for (const one of columns.flatMap(({ check }) => check?.bars ?? [])) {
    const size = sizeOf(one);
    const needed = Math.min(one.required_bytes, LONGEST_BAR * size);
    scales.set(keyOf(one), Math.max(scales.get(keyOf(one)) ?? 0, size, needed));
  }
  return scales;
}

/** The size from which bars are cut off; null if none is. */
export function cutAt(columns, scales) {
  const cut = columns.flatMap(({ check }) => check?.bars ?? []).filter((one) =>
    one.required_bytes > scales.get(keyOf(one))
  );
  return cut.length ? Math.min(...cut.map((one) => scales.get(keyOf(one)))) : null;
}

function shownMax({ check }) {
  if (!check) return null;
  return check.max_context ? figure(contextWords(check.max_context)) : COMPARE.noneFits;
}

function shownContext({ check }) {
  return check && [contextWords(check.context_tokens), " ", check.cache && below(COMPARE.cacheType(check.cache))];
}

function shownDownload({ check }) {
  if (!check) return null;
  return check.download_bytes ? COMPARE.gigabytes(check.download_bytes) : below(COMPARE.onDisk);
}

const cacheBytes = ({ check }) =>
  check && check.estimate.kv_bytes + check.estimate.kv_swa_bytes + check.estimate.recurrent_bytes;

const workingBytes = ({ check }) =>
  check && check.estimate.compute_bytes + check.estimate.runtime_bytes + check.estimate.output_bytes;

function shownParameters({ check }) {
  if (!check?.parameters) return null;
  const isSparse = check.active_parameters < check.parameters;
  return [params(check.parameters), " ", isSparse && below(COMMON.active(check.active_parameters))];
}

function shownFirst(column) {
  const wait = loaded(column)?.first_token_s;
  return wait && COMPARE.seconds(wait.typical);
}

function shownLoss({ check }) {
  if (!check?.loss) return null;
  const { value, basis, source } = check.loss;
  if (!value) return COMPARE.noLoss;
  return el("span", { title: source ?? "", text: COMPARE.loss(value, basis === "neighbour") });
}

function shownCommand(column) {
  const { check } = column;
  if (!check) return null;
  if (!check.command) return COMPARE.notLoaded;
  const { command } = check;
  const name = titleOf(column);
  const button = el("button", {
    type: "button",
    class: "small",
    text: COMPARE.copyCommand,
    "aria-label": COMPARE.copyCommandOf(name),
  });
  button.addEventListener("click", () => copy(command, button));
  return [el("pre", { tabIndex: 0, "aria-label": COMPARE.commandOf(name) }, el("code", { text: command })), button];
}

/** A size, compared between those that load. */
const inBytes = (value) => ({
  value: (column) => loaded(column) && value(column),
  best: "least",
  as: gib,
  show: (column) => sized(value(column)),
});

const sized = (count) => (count ? el("span", { title: COMMON.bytes(count), text: gib(count) }) : null);

const maxContextOf = (column) => loaded(column)?.max_context || null;

/**
 * name, hint; show(column, scales): what a cell has; value(column): what is compared, best: "most" or "least" of it;
 * as(value): how it is written, because values that are written alike are equally good.
 */
export const ROWS = [
  { name: "verdict", show: shownVerdict, value: (column) => RANKS[statusOf(column)], best: "most" },
  {
    name: "speed",
    hint: HINTS.speed,
    show: shownSpeed,
    value: (column) => loaded(column)?.speed?.typical,
    best: "most",
    as: COMPARE.speed,
  },
  { name: "memory", show: shownBars },
  { name: "maxContext", hint: HINTS.maxContext, show: shownMax, value: maxContextOf, best: "most", as: contextText },
  {
    name: "context",
    show: shownContext,
    value: (column) => loaded(column)?.context_tokens,
    best: "most",
    as: contextText,
  },
  {
    name: "download",
    show: shownDownload,
    value: (column) => loaded(column)?.download_bytes,
    best: "least",
    as: COMPARE.gigabytes,
  },
  { name: "weights", ...inBytes(({ check }) => check?.estimate.model_bytes) },
  { name: "cache", ...inBytes(cacheBytes) },
  { name: "compute", ...inBytes(workingBytes) },
  { name: "total", ...inBytes(({ check }) => check?.estimate.total_bytes) },
  { name: "quant", show: ({ check }) => check?.quantization },
  { name: "parameters", show: shownParameters },
  {
    name: "native",
    show: ({ check }) => check?.native_context && contextWords(check.native_context),
    value: ({ check }) => check?.native_context,
    best: "most",
    as: contextText,
  },
  {
    name: "firstToken",
    hint: HINTS.firstToken,
    show: shownFirst,
    value: (column) => loaded(column)?.first_token_s?.typical,
    best: "least",
    as: COMPARE.seconds,
  },
  {
    name: "loss",
    hint: HINTS.loss,
    show: shownLoss,
    value: (column) => loaded(column)?.loss?.value,
    best: "least",
    as: (value) => COMPARE.loss(value, false),
  },
  { name: "command", show: shownCommand },
].map((row) => ({ as: String, ...row, label: LABELS[row.name] }));

/** The columns with the best value of a row: none where they are all written alike. */
export function bestOf(row, columns) {
  const rows = row.best ? columns.map((column) => [column, row.value(column)]) : [];
  const known = rows.filter(([, value]) => value !== null && value !== undefined);
  const written = known.map(([, value]) => row.as(value));
  if (new Set(written).size < 2) return new Set();
  const values = known.map(([, value]) => value);
  const best = row.as(row.best === "least" ? Math.min(...values) : Math.max(...values));
  return new Set(known.filter(([, value]) => row.as(value) === best).map(([column]) => column));
}

/** Quantisation and engine: what a column's head says below the machine. */
export function setupWords(column) {
  const { check, quant, engine } = column;
  const name = check || engine ? engineLabel(engineOf(column)) : "";
  const text = [check?.quantization || quant, name].filter(Boolean).join(" · ");
  return el("span", { title: check ? engineWords(check.engine) : "", text });
}

/** The link to a column's model page. */
export function openLink(column, context) {
  const href = column.check ? `/model?${modelQuery(column, context)}` : `/model?ref=${encodeURIComponent(column.ref)}`;
  return el("a", { class: "button small", href, text: COMPARE.open, "aria-label": COMPARE.openNamed(titleOf(column)) });
}
