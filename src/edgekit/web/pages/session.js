// Requests answers after changes of the settings: a fit at once, a check and curves a moment later. The newest wins.

import { call, isPassing } from "./api.js";
import { cacheFlags, cacheName } from "./cache_names.js";
import { replaceQuery } from "./router.js";
import { PLOT } from "./texts.js";

const PAUSE_MS = 150; // before the check, after a single change
const RUN_PAUSE_MS = 450; // after one of several: the next fit must not wait for a check
const CURVE_PAUSE_MS = 200; // after a check, before the curves
const CURVE_POINTS = 24;
const LOOK_MS = 40; // how often rested() looks
const FIELDS = {
  fit: (settings) => settings.fitFields(),
  check: (settings) => settings.checkFields(),
  curves: (settings) => settings.curveFields(),
};

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const written = (fields) => JSON.stringify(fields);

/** Dispatches "fit", "check", "curves" and "failed", each with a detail. */
export class Session extends EventTarget {
  fit = null;
  check = null;
  curves = [];
  drawsCurves = false; // whether the plot is open
  #settings;
  #signal;
  #of = {}; // answer -> the fields of its request
  #open = new Set(); // running requests: "judge" (no answer yet), "fit", "check", "curves"
  #question = new AbortController(); // aborted when the engine, machine or weights change
  #slow = new AbortController(); // the check and the curves; aborted when a setting changes
  #wanted = null; // time of the newest change without a request
  #isAsking = false;
  #timer = 0;
  #changed = -RUN_PAUSE_MS; // time of the last change
  #wished = new Set(); // requested cache types besides the default ones
  #wishedOf = null; // the engine of #wished
  #refused = new Map(); // cache type -> {why, isFinal}: why it has no curve

  constructor(settings, signal) {
    super();
    this.#settings = settings;
    this.#signal = signal;
    signal.addEventListener("abort", () => this.#callOff());
  }

  /** Whether there is an answer, and it is for the current settings. */
  isPresent(what) {
    return this.#of[what] === written(FIELDS[what](this.#settings));
  }

  /** The answers that are for the current settings. */
  present() {
    return Object.fromEntries(
      Object.keys(FIELDS).filter((what) => this.isPresent(what)).map((what) => [what, this[what]]),
    );
  }

  /** Resolves when no request is running, or after the timeout. */
  async rested(mostMs) {
    const over = performance.now() + mostMs;
    while (this.#open.size && performance.now() < over && !this.#signal.aborted) await pause(LOOK_MS);
  }

  /** Starts with a check that is done already. */
  async begin(check) {
    this.#take(check, this.#settings.checkFields());
    await this.#ask(performance.now());
  }

  /** After a change of a setting: a fit at once, check and curves after a pause. */
  change(started = performance.now()) {
    const isJudged = !this.#open.has("judge");
    if (isJudged) this.#ask(started);
    this.#slow.abort();
    clearTimeout(this.#timer);
    this.#begin("check", ...this.#lines);
    const isRun = started - this.#changed < RUN_PAUSE_MS;
    this.#changed = started;
    this.#timer = setTimeout(() => this.#rest(isJudged ? null : started), isRun ? RUN_PAUSE_MS : PAUSE_MS);
  }

  /** After a change of the engine, machine or weights: a check comes first. */
  anew(started = performance.now()) {
    this.#callOff();
    this.#question = new AbortController();
    this.#wished.clear();
    this.#begin("judge", "check", ...this.#lines);
    return this.#rest(started);
  }

  get #lines() {
    return this.drawsCurves ? ["curves"] : [];
  }

  #callOff() {
    this.#question.abort();
    this.#slow.abort();
    clearTimeout(this.#timer);
    this.#wanted = null;
  }

  #tell(name, detail) {
    if (!this.#signal.aborted) this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #begin(...names) {
    for (const name of names) this.#open.add(name);
    this.#mark();
  }

  #end(...names) {
    for (const name of names) this.#open.delete(name);
    this.#mark();
  }

  /** Marks each answer: "ready" for the current settings, "busy" while it is requested, "old" if that failed. */
  #mark() {
    if (this.#signal.aborted) return; // the page was left
    const { dataset } = document.documentElement;
    const word = (name) => (this.isPresent(name) ? "ready" : this.#open.has(name) ? "busy" : "old");
    const hasLines = (this.drawsCurves && this.curves.length > 0) || this.#open.has("curves");
    dataset.fit = this.#open.has("fit") || this.#open.has("judge") ? "busy" : "ready";
    dataset.check = word("check");
    dataset.curves = hasLines ? word("curves") : "ready";
  }

  /** Runs one fit at a time; of the waiting changes only the newest. */
  async #ask(started) {
    this.#wanted = started;
    this.#begin("fit");
    if (this.#isAsking) return;
    this.#isAsking = true;
    while (this.#wanted !== null) {
      const from = this.#wanted;
      this.#wanted = null;
      await this.#one(from, this.#question.signal);
    }
    this.#isAsking = false;
    this.#end("fit");
  }

  async #one(started, signal) {
    const fields = this.#settings.fitFields();
    try {
      const fit = await call("fit", fields, { signal });
      if (signal.aborted) return; // the engine, machine or weights have changed
      this.fit = fit;
      this.#of.fit = written(fields);
      this.#tell("fit", fit);
      performance.measure("fit", { start: started, end: performance.now() });
    } catch (error) {
      this.#fail(error, "fit", signal);
    }
  }

  /** Requests the check, then the curves. */
  async #rest(started = null) {
    replaceQuery(this.#settings.query());
    this.#slow = new AbortController();
    const { signal } = this.#slow;
    const fields = this.#settings.checkFields();
    try {
      const check = await call("check", fields, { signal });
      if (signal.aborted) return;
      const isMoved = this.#take(check, fields);
      const isMissing = !this.#open.has("fit") && !this.isPresent("fit"); // it failed, and the server is back
      if (isMoved || isMissing || started !== null) this.#ask(started ?? performance.now());
      this.#end("judge", "check");
      if (!this.drawsCurves) return this.#end("curves");
      await pause(CURVE_PAUSE_MS);
      if (!signal.aborted) await this.#drawAnew(signal);
    } catch (error) {
      this.#fail(error, "check", signal);
    }
    if (!signal.aborted) this.#end("judge", "check", "curves"); // else a newer request is running
    return null;
  }

  #take(check, fields) {
    const isMoved = this.#settings.settle(check);
    this.check = check;
    this.#of.check = written(fields);
    this.#tell("check", check);
    return isMoved;
  }

  /** Requests the default cache types together; the current one and requested ones one by one. */
  async #drawAnew(signal) {
    const fields = this.#settings.curveFields();
    if (!this.isPresent("curves") && !(await this.#drawUsual(fields, signal))) return;
    if (this.#wishedOf !== fields.engine) this.#wished.clear();
    this.#wishedOf = fields.engine;
    this.#wished.add(cacheName(this.#settings));
    for (const name of [...this.#wished]) {
      if (!signal.aborted) await this.#drawOne(name, signal);
    }
  }

  async #drawUsual(fields, signal) {
    let failure = null;
    try {
      const found = await call("curves", { ...fields, points: CURVE_POINTS }, { signal });
      if (signal.aborted) return false;
      this.curves = found.curves;
      this.#of.curves = written(fields);
    } catch (error) {
      if (signal.aborted) return false;
      this.curves = []; // those of other settings do not apply
      this.#of.curves = null;
      failure = error;
    }
    this.#refused = new Map();
    this.#tellCurves(failure);
    return failure === null;
  }

  /** Requests the curves again. */
  async drawAgain() {
    this.#begin("curves");
    const { signal } = this.#slow;
    await this.#drawAnew(signal);
    if (!signal.aborted) this.#end("curves");
  }

  /** Adds a cache type to the plot. */
  drawCache(name) {
    this.#wished.add(name);
    return this.#drawOne(name, this.#question.signal);
  }

  async #drawOne(name, signal) {
    if (!this.isPresent("curves")) return; // drawAgain() will include it
    if (this.curves.some((curve) => curve.cache === name) || this.#refused.get(name)?.isFinal) return;
    const { engine } = this.#settings;
    const of = this.#of.curves;
    let added = [];
    let told = { why: PLOT.refuses(engine, name), isFinal: true };
    try {
      const fields = { ...this.#settings.curveFields(), ...cacheFlags(name, engine), points: CURVE_POINTS };
      const found = await call("curves", fields, { signal });
      added = found.curves.filter((curve) => curve.cache === name);
    } catch (error) {
      told = { why: error.message, isFinal: !isPassing(error) };
    }
    if (signal.aborted || of !== this.#of.curves) return; // all curves have been requested again
    this.curves = [...this.curves, ...added];
    if (added.length) this.#refused.delete(name);
    else this.#refused.set(name, told);
    this.#tellCurves();
  }

  #tellCurves(failure = null) {
    this.#tell("curves", { curves: this.curves, refused: this.#refused, failure });
  }

  /** Dispatches "failed", unless the request was cancelled. */
  #fail(error, what, signal) {
    if (!signal.aborted) this.#tell("failed", { error, what });
  }
}
