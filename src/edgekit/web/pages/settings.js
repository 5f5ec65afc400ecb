// What a person chose, and what EdgeKit settled for the rest -> the fields of a call, and the address.

import { engineNamed, flagsAbout, INSTEAD_OF } from "./engines.js";

const NOT_FLAGS = new Set(["ref", "device", "ram", "vram", "cpu"]);
const PLACEMENT = flagsAbout("placement", "backend");
const CARDS = flagsAbout("placement", "backend", "cards"); // said of a machine's own cards
const CACHE = flagsAbout("cache");
const ANY_ENGINE = new Set(["engine", "context", "min_context", "window_budget", "job"]);
/** What every engine understands. */
const PLANNED = new Set(["context", "min_context", "job", "users", "min_speed", "max_use", "reserve"]);
const INSTEAD = { ...INSTEAD_OF, context: "job" }; // one says what the other does
const SIZING = new Set(["job", "window_budget"]); // a context is made of them, where none is said

/** Another engine or other weights: nothing of the last answer holds. */
const WEIGHTS = new Set(["quant", ...flagsAbout("weights")]);
export const ANEW = new Set(["engine", ...WEIGHTS]);

export class Settings {
  chosen = {}; // by the person: what the address says
  settled = {}; // by the last check, for what was not chosen
  engine = null; // the one that answered
  layers = 0;

  constructor(params, machine) {
    this.ref = (params.get("ref") ?? "").trim();
    this.machine = machine;
    for (const [key, text] of params) {
      if (!NOT_FLAGS.has(key) && text !== "") this.chosen[key] = text;
    }
  }

  /** The value that counts: chosen, or settled. */
  value(key) {
    return this.chosen[key] ?? this.settled[key] ?? null;
  }

  /** What the model is called; that it is of the catalog stands in the box. */
  get name() {
    return this.ref.replace(/^catalog:/i, "");
  }

  /** Whether anything was said beside the model: settings, or a machine. */
  get isSaid() {
    return !this.machine.isThis || Object.keys(this.chosen).length > 0;
  }

  isAuto(key) {
    return !(key in this.chosen);
  }

  /** null takes a choice back. */
  set(key, value) {
    const isTaken = value !== null && value !== "";
    if (isTaken) this.chosen[key] = value;
    else delete this.chosen[key];
    if (isTaken) delete this.chosen[INSTEAD[key]];
    if (key === "engine") this.#forgetFlags();
    if (ANEW.has(key)) this.settled = {};
    if (PLACEMENT.has(key)) this.#forgetPlacement();
    if (!ANY_ENGINE.has(key) && this.engine) this.chosen.engine ??= this.engine;
  }

  /** What was chosen of the weights: {quant: "Q8_0"}; empty where EdgeKit chooses. */
  get weights() {
    return Object.fromEntries(Object.entries(this.chosen).filter(([key]) => WEIGHTS.has(key)));
  }

  /** Other weights; none: EdgeKit chooses them. */
  setWeights(flags) {
    for (const key of WEIGHTS) delete this.chosen[key];
    this.settled = {};
    for (const [key, value] of Object.entries(flags)) this.set(key, value);
  }

  reset() {
    this.chosen = {};
    this.settled = {};
  }

  /** On another machine: what was said of the cards of the last one means nothing. */
  move() {
    for (const key of CARDS) delete this.chosen[key];
  }

  #forgetFlags() {
    for (const key of Object.keys(this.chosen)) {
      if (!ANY_ENGINE.has(key)) delete this.chosen[key];
    }
  }

  #forgetPlacement() {
    for (const key of PLACEMENT) delete this.settled[key];
  }

  /** Takes over what a check settled. Whether that changes what is shown. */
  settle(check) {
    const before = JSON.stringify(this.fitFields());
    this.engine = check.engine.name;
    const isPlaced = Object.keys(this.chosen).some((key) => PLACEMENT.has(key));
    const hasBackends = Boolean(engineNamed(this.engine)?.groups.backend.length);
    const isOnCpu = hasBackends && !isPlaced && check.estimate.backend === "cpu";
    const settled = { ...check.flags, ...(isOnCpu ? { backend: "cpu" } : {}) };
    this.settled = Object.fromEntries(
      Object.entries(settled).filter(([key]) => this.isAuto(key)),
    );
    return JSON.stringify(this.fitFields()) !== before;
  }

  #asked() {
    const { device, ram, vram, cpu } = this.machine;
    return { model: this.ref, device, ram, vram, cpu };
  }

  checkFields() {
    return { ...this.#asked(), ...this.chosen };
  }

  /** The question without its weights: every quantisation is listed. */
  ladderFields() {
    const kept = Object.entries(this.checkFields()).filter(([key]) => !WEIGHTS.has(key));
    return { ...Object.fromEntries(kept), engine: this.chosen.engine ?? this.engine };
  }

  /** The question that another engine is asked: what every engine understands. */
  planFields(engine) {
    const kept = Object.entries(this.chosen).filter(([key]) => PLANNED.has(key));
    return { ...this.#asked(), ...Object.fromEntries(kept), engine };
  }

  /** Of a context that is settled, what it was made of is not said again. */
  fitFields() {
    const engine = this.chosen.engine ?? this.engine;
    const fields = { ...this.#asked(), ...this.settled, ...this.chosen, engine };
    const isSized = fields.context !== undefined;
    return Object.fromEntries(Object.entries(fields).filter(([key]) => !(isSized && SIZING.has(key))));
  }

  /** Every cache type and every context is drawn: neither is said. */
  curveFields() {
    const drawn = (key) => key === "context" || CACHE.has(key);
    return Object.fromEntries(Object.entries(this.fitFields()).filter(([key]) => !drawn(key)));
  }

  /** The same question to another engine, for the address. */
  queryFor(engine) {
    const kept = Object.entries(this.chosen).filter(([key]) => ANY_ENGINE.has(key));
    return { ref: this.ref, ...Object.fromEntries(kept), engine };
  }

  /** For the address; the machine is put there by itself. */
  query() {
    return { ref: this.ref, ...this.chosen };
  }
}
