// The memory breakdown as a table, and the notes below it.

import { COMPONENTS, groupOf } from "./bar.js";
import { el } from "./dom.js";
import { bytes, tokens } from "./format.js";
import { BARS, COMMON, MODEL } from "./texts.js";

const WEAKEST = ["assumed", "modelled", "asked", "exact"];

/** A rounded size; the tooltip has the exact bytes. */
function size(n) {
  return el("span", { title: COMMON.bytes(n), text: bytes(n) });
}

/** A function from a pool to its name on this machine. Bars and budgets are in the same order. */
export function poolNames(fit, check) {
  const budgets = check?.budgets ?? [];
  const names = new Map();
  if (budgets.length === fit.bars.length) {
    budgets.forEach((budget, i) => budget.pools.forEach((pool) => names.set(pool, fit.bars[i].memory)));
  }
  const plain = (pool) => pool.replace(/^device/, MODEL.gpu).replace(/^host$/, MODEL.hostMemory);
  return (pool) => names.get(pool) ?? plain(pool);
}

/** The lines of the estimate, merged into one row for each component and memory. */
function rowsOf(lines) {
  const rows = new Map();
  for (const line of lines) {
    const key = `${line.component}|${line.pool}|${line.part ?? ""}`;
    const row = rows.get(key) ?? { ...line, bytes: 0, lines: 0, reasons: new Set(), within: 0 };
    row.bytes += line.bytes;
    row.lines += 1;
    row.reasons.add(line.because);
    row.within = Math.max(row.within, line.within ?? 0);
    row.basis = WEAKEST[Math.min(WEAKEST.indexOf(row.basis), WEAKEST.indexOf(line.basis))];
    rows.set(key, row);
  }
  return [...rows.values()].filter((row) => row.bytes);
}

const ORDER = new Map(COMPONENTS.map((one, i) => [one.name, i]));

function why(row) {
  const [first] = row.reasons;
  return row.reasons.size > 1 ? MODEL.moreLines(first, row.lines) : first;
}

/** "modelled, within 3.2 %", as the command line writes it. */
function knownWords(basis, within) {
  if (within === null || basis === "exact") return basis;
  return MODEL.within(basis, (100 * within).toFixed(within < 0.1 ? 1 : 0));
}

/** How accurate the sum of these lines is: the weakest basis, and the bound of the error. */
function known(lines) {
  const [basis] = WEAKEST.filter((one) => lines.some((line) => line.basis === one));
  const isBounded = lines.every((line) => line.within !== null || line.basis === "exact");
  const total = lines.reduce((sum, line) => sum + line.bytes, 0);
  const off = lines.reduce((sum, line) => sum + line.bytes * (line.within ?? 0), 0);
  return knownWords(basis, isBounded ? off / total : null);
}

/** "exact: weights, kv cache; modelled: prompt cache". */
function basisText(lines) {
  const names = new Map();
  for (const { name } of COMPONENTS) {
    const own = lines.filter((line) => line.component === name && line.bytes);
    if (!own.length) continue;
    const words = known(own);
    names.set(words, [...(names.get(words) ?? []), name]);
  }
  const parts = [...names].map(([words, some]) => `${words}: ${some.join(", ")}`);
  return MODEL.basis(parts.join("; "));
}

const nameOfRow = ({ component, part }) => `${BARS.components[component] ?? component}${part ? ` (${part})` : ""}`;

const swatch = (row) => el("span", { class: `swatch c-${groupOf(row.component)}`, "aria-hidden": "true" });

function rowNode(row, nameOf) {
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, swatch(row), ` ${nameOfRow(row)}`),
    el("td", { text: nameOf(row.pool) }),
    el("td", { class: "number" }, size(row.bytes), el("small", { class: "exact", text: tokens(row.bytes) })),
    el("td", { text: knownWords(row.basis, row.within || null) }),
    el("td", { class: "because", text: why(row) }),
  );
}

function sumNode(name, pool, sum) {
  const figure = el("td", { class: "number" }, size(sum), el("small", { class: "exact", text: tokens(sum) }));
  const empty = [el("td", {}), el("td", {})];
  return el("tr", { class: "sum" }, el("th", { scope: "row", text: name }), el("td", { text: pool }), figure, empty);
}

const HEADS = ["part", "memory", "size", "basis", "why"];

const headNode = (name) => el("th", { scope: "col", class: name === "size" && "number", text: MODEL.columns[name] });

const laterHead = () => el("tr", {}, el("th", { colSpan: 5, scope: "rowgroup", text: MODEL.later }));

/** The table, by memory and component; what may be allocated later is in a part of its own. */
export function billTable(estimate, nameOf) {
  const inOrder = (a, b) => a.pool.localeCompare(b.pool) || ORDER.get(a.component) - ORDER.get(b.component);
  const rows = rowsOf(estimate.lines).sort(inOrder);
  const kept = rows.filter((row) => row.reserved);
  const later = rows.filter((row) => !row.reserved);
  const pools = [...new Set(kept.map((row) => row.pool))];
  const groups = pools.flatMap((pool) => {
    const own = kept.filter((row) => row.pool === pool);
    const sum = own.reduce((total, row) => total + row.bytes, 0);
    return [...own.map((row) => rowNode(row, nameOf)), pools.length > 1 && sumNode(MODEL.subtotal, nameOf(pool), sum)];
  });
  return el(
    "table",
    { class: "bill" },
    el("thead", {}, el("tr", {}, HEADS.map(headNode))),
    el("tbody", {}, ...groups.filter(Boolean), sumNode(MODEL.total, "", estimate.total_bytes)),
    later.length > 0 && el("tbody", { class: "later" }, laterHead(), later.map((row) => rowNode(row, nameOf))),
  );
}

/** The notes, without duplicates; those only in the check are marked. */
export function notes(fit, check) {
  const { estimate } = fit;
  const own = new Set([estimate && basisText(estimate.lines), ...(fit.notes ?? []), ...(estimate?.notes ?? [])]);
  own.delete(null);
  const others = new Set((check?.notes ?? []).filter((text) => !own.has(text)));
  return [
    ...[...own].map((text) => el("li", { text })),
    ...[...others].map((text) => el("li", { class: "of-check", text })),
  ];
}
