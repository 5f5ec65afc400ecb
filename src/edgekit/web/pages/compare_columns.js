// The columns of the compare page: a model, machine, quantisation and engine each, and what `check` says of it.

import { isPassing, job } from "./api.js";
import { COMPARED, engineNamed, ENGINES, flagsAbout } from "./engines.js";
import { withoutMarks } from "./format.js";
import { machine, machineName, spelled } from "./machine.js";
import { COMPARE, ERRORS } from "./texts.js";

export const MOST_COLUMNS = 6;
const AT_ONCE = 5; // a browser opens six connections to a server: one stays free
const CANNOT_RUN = new Set(["RefusedError", "HardwareError"]);
const NO_MACHINE = { device: [], ram: "", vram: "", cpu: "" };
const MACHINE_KEYS = ["ram", "vram", "cpu"];
const THIS = "this"; // this computer, in the address
const KNOWN_ENGINES = new Set(ENGINES.map(([name]) => name));
const WEIGHTS = flagsAbout("weights");

let lastId = 0;

/** A column that has not asked yet; `on` is its own machine, null for the page's. */
export function makeColumn({ ref, quant = "", engine = "", on = null }) {
  return { id: `c${++lastId}`, ref, quant, engine, on, check: null, error: null, progress: null, asked: null };
}

/** The column's own choices, to make another one like it. */
export const choicesOf = ({ ref, quant, engine, on }) => ({ ref, quant, engine, on });

/** The machine that a column asks about. */
export const machineOf = ({ on }) =>
  on ?? { device: machine.device, ram: machine.ram, vram: machine.vram, cpu: machine.cpu };

/** What a column's machine is called: its devices as the server writes them, once it has answered. */
export function machineTitle(column) {
  const fields = machineOf(column);
  return machineName(column.check ? spelled(fields, column.check.machine.name) : fields);
}

/** What a column's model is called. */
export function titleOf({ ref, check }) {
  return withoutMarks(check?.title ?? check?.model ?? ref.replace(/^catalog:/i, ""));
}

/** The engine that answered, or would. */
export const engineOf = ({ engine, check }) => check?.engine.name ?? (engine || COMPARED[0]);

/** The quantisations that an engine lists, the largest first; empty where it makes none itself. */
export function quantsOf(name) {
  const control = engineNamed(name)?.controls.find((one) => WEIGHTS.has(one.key) && one.kind === "menu");
  return control?.values ?? [];
}

/** {device: ["RTX 4090"], ram: "64G"} -> "RTX 4090;ram=64G". */
function machineText(on) {
  if (on === null) return "";
  const parts = [...on.device, ...MACHINE_KEYS.filter((key) => on[key]).map((key) => `${key}=${on[key]}`)];
  return parts.join(";") || THIS;
}

function machineFrom(text) {
  if (!text) return null;
  const on = { ...NO_MACHINE, device: [] };
  if (text === THIS) return on;
  for (const part of text.split(";")) {
    const [, key, value] = /^(\w+)=(.*)$/.exec(part) ?? [];
    if (MACHINE_KEYS.includes(key)) on[key] = value;
    else on.device.push(part);
  }
  return on;
}

const listed = (query, name) => query.getAll(name).flatMap((text) => text.split(","));

/** The columns of an address: `ref` repeated; engines and quantisations as lists in the same order; `on` repeated. */
export function columnsOf(query) {
  const engines = listed(query, "engine");
  const quants = listed(query, "quant");
  const machines = query.getAll("on");
  return query
    .getAll("ref")
    .map((ref, at) => ({
      ref: ref.trim(),
      engine: KNOWN_ENGINES.has(engines[at]) ? engines[at] : "",
      quant: (quants[at] ?? "").trim(),
      on: machineFrom(machines[at]),
    }))
    .filter(({ ref }) => ref)
    .slice(0, MOST_COLUMNS)
    .map(makeColumn);
}

/** The address of these columns: what another tab needs to show the same. */
export function queryOf(columns, context) {
  const query = new URLSearchParams();
  for (const { ref } of columns) query.append("ref", ref);
  if (columns.some(({ engine }) => engine)) query.set("engine", columns.map(({ engine }) => engine).join(","));
  if (columns.some(({ quant }) => quant)) query.set("quant", columns.map(({ quant }) => quant).join(","));
  if (columns.some(({ on }) => on)) { for (const { on } of columns) query.append("on", machineText(on)); }
  if (context) query.set("context", context);
  return query;
}

/** The address of a column's model page, with the same choices. */
export function modelQuery(column, context) {
  const query = new URLSearchParams({ ref: column.ref, engine: column.check.engine.name });
  if (context) query.set("context", context);
  if (column.quant) {
    for (const [key, value] of Object.entries(column.check.flags)) if (WEIGHTS.has(key)) query.set(key, value);
  }
  for (const [name, value] of Object.entries(machineOf(column))) {
    for (const text of [value].flat()) if (text) query.append(name, text);
  }
  return query;
}

/** Whether nothing is known yet, and something is asked. */
export const isAsking = (column) => column.progress !== null;

/** Whether the engine or the machine cannot run it: an answer, not a failure. */
export const isRefused = ({ error }) => error !== null && CANNOT_RUN.has(error.type);

/** The verdict; null where there is none. */
export const statusOf = (column) => column.check?.status ?? (isRefused(column) ? "refused" : null);

/** Asks the questions of columns, a few at a time. */
export class Asker {
  #signal;
  #onchange;
  #waiting = [];
  #running = 0;

  /** onchange(column, isAnswer) when something is known of a column. */
  constructor(signal, onchange) {
    this.#signal = signal;
    this.#onchange = onchange;
  }

  /** Asks about a column; what it asked before is called off. */
  ask(column, context) {
    column.asked?.abort();
    column.asked = new AbortController();
    Object.assign(column, { check: null, error: null, progress: COMPARE.waiting });
    const signal = AbortSignal.any([column.asked.signal, this.#signal]);
    this.#waiting.push({ column, context, signal });
    this.#next();
    this.#onchange(column, false);
  }

  /** A column that shall not be asked about any more. */
  drop(column) {
    column.asked?.abort();
  }

  /** Stops asking; the column says so, and can be tried again. */
  cancel(column) {
    column.asked?.abort();
    Object.assign(column, { progress: null, error: new Error(ERRORS.cancelled) });
    this.#onchange(column, true);
  }

  #next() {
    while (this.#running < AT_ONCE && this.#waiting.length) {
      const one = this.#waiting.shift();
      if (!one.signal.aborted) this.#run(one);
    }
  }

  async #run({ column, context, signal }) {
    this.#running += 1;
    column.progress = COMPARE.reading;
    this.#onchange(column, false);
    const { ref: model, engine, quant } = column;
    try {
      const onProgress = (line) => {
        if (signal.aborted) return;
        column.progress = line;
        this.#onchange(column, false);
      };
      const check = await job("check", { model, engine, quant, context, ...machineOf(column) }, { signal, onProgress });
      if (!signal.aborted) Object.assign(column, { check, progress: null });
    } catch (error) {
      if (!signal.aborted) Object.assign(column, { error, progress: null });
    }
    this.#running -= 1;
    if (!signal.aborted) this.#onchange(column, true);
    this.#next();
  }
}

/** Whether trying again may help: also after a cancel. */
export const canRetry = ({ error }) =>
  error !== null && (error.status === undefined || isPassing(error) || error.status === 200);
