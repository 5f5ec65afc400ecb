// The user's settings and EdgeKit's choices for the rest, as fields of a call and as parameters of the address.

import { engineNamed, flagsAbout, INSTEAD_OF } from "./engines.js";
import { withoutMarks } from "./format.js";

const NOT_FLAGS = new Set(["ref", "device", "ram", "vram", "cpu"]);
const PLACEMENT = flagsAbout("placement", "backend");
const CARDS = flagsAbout("placement", "backend", "cards"); // about the cards of one machine
const CACHE = flagsAbout("cache");
const ANY_ENGINE = new Set(["engine", "context", "min_context", "window_budget", "job"]);
/** Fields that every engine has. */
const PLANNED = new Set(["context", "min_context", "job", "users", "min_speed", "max_use", "reserve"]);
const INSTEAD = { ...INSTEAD_OF, context: "job" }; // setting one removes the other
const SIZING = new Set(["job", "window_budget"]); // they determine the context unless it is given

/** Changes after which nothing of the last answer holds: engine, weights. */
const WEIGHTS = new Set(["quant", ...flagsAbout("weights")]);
export const ANEW = new Set(["engine", ...WEIGHTS]);

export class Settings {
  chosen = {}; // by the user: the parameters of the address
  settled = {}; // by the last check, for everything else
  engine = null; // of the last check
  layers = 0;

  constructor(params, machine) {
    this.ref = (params.get("ref") ?? "").trim();
    this.machine = machine;
    for (const [key, text] of params) {
      if (!NOT_FLAGS.has(key) && text !== "") this.chosen[key] = text;
    }
  }

  /** The value in use: chosen, else settled. */
  value(key) {
    return this.chosen[key] ?? this.settled[key] ?? null;
  }

  /** The model's reference without "catalog:". */
  get name() {
    return withoutMarks(this.ref.replace(/^catalog:/i, ""));
  }

  /** Whether anything but the model was chosen: settings, or a machine. */
  get hasChoices() {
    return !this.machine.isThis || Object.keys(this.chosen).length > 0;
  }

  isAuto(key) {
    return !(key in this.chosen);
  }

  /** Sets a choice; null removes it. */
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

  /** The chosen weights: {quant: "Q8_0"}; {} if EdgeKit chooses. */
  get weights() {
    return Object.fromEntries(Object.entries(this.chosen).filter(([key]) => WEIGHTS.has(key)));
  }

  /** Sets the weights; with {} EdgeKit chooses. */
  setWeights(flags) {
    for (const key of WEIGHTS) delete this.chosen[key];
    this.settled = {};
    for (const [key, value] of Object.entries(flags)) this.set(key, value);
  }

  reset() {
    this.chosen = {};
    this.settled = {};
  }

  /** After a change of the machine: removes settings for the cards of the last one. */
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

  /** Takes over the choices of a check. Returns whether that changes the fields of `fit`. */
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

  #subject() {
    const { device, ram, vram, cpu } = this.machine;
    return { model: this.ref, device, ram, vram, cpu };
  }

  checkFields() {
    return { ...this.#subject(), ...this.chosen };
  }

  /** The fields of `ladder`: without weights, because it lists all of them. */
  ladderFields() {
    const kept = Object.entries(this.checkFields()).filter(([key]) => !WEIGHTS.has(key));
    return { ...Object.fromEntries(kept), engine: this.chosen.engine ?? this.engine };
  }

  /** The fields of a plan with another engine: only those that every engine has. */
  planFields(engine) {
    const kept = Object.entries(this.chosen).filter(([key]) => PLANNED.has(key));
    return { ...this.#subject(), ...Object.fromEntries(kept), engine };
  }

  /** The fields of `fit`: everything in use, without what a known context was computed from. */
  fitFields() {
    const engine = this.chosen.engine ?? this.engine;
    const fields = { ...this.#subject(), ...this.settled, ...this.chosen, engine };
    const isSized = fields.context !== undefined;
    return Object.fromEntries(Object.entries(fields).filter(([key]) => !(isSized && SIZING.has(key))));
  }

  /** The fields of `curves`, which cover every context and cache type. */
  curveFields() {
    const drawn = (key) => key === "context" || CACHE.has(key);
    return Object.fromEntries(Object.entries(this.fitFields()).filter(([key]) => !drawn(key)));
  }

  /** The parameters of the address for another engine. */
  queryFor(engine) {
    const kept = Object.entries(this.chosen).filter(([key]) => ANY_ENGINE.has(key));
    return { ref: this.ref, ...Object.fromEntries(kept), engine };
  }

  /** The parameters of the address; machine.js adds the machine. */
  query() {
    return { ref: this.ref, ...this.chosen };
  }
}
