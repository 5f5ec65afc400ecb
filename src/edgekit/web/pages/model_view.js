// Everything under the box: built once, updated with each answer.

import { isPassing } from "./api.js";
import { bars, billTable, headline, notes, poolNames } from "./answer.js";
import { cacheName, cacheTypes, ONE_TYPE, otherHalf } from "./cache_names.js";
import { changeList, changesTitle } from "./changes.js";
import { commands } from "./commands.js";
import { readTokens } from "./context_control.js";
import { controls } from "./controls.js";
import { announce, el, fault, refill, scrollRoom } from "./dom.js";
import { engineWords, verdictWord } from "./engines.js";
import { machine } from "./machine.js";
import { Plot } from "./plot.js";
import { replaceQuery } from "./router.js";
import { Session } from "./session.js";
import { ANEW } from "./settings.js";
import { side } from "./side.js";
import { Strip } from "./strip.js";
import { COMMON, MODEL } from "./texts.js";
import { sentence, verdict } from "./bar.js";

const SAID_MS = 900; // after the last change: a reader hears the verdict, not every step
const SAVE_MS = 8000; // how long a file waits for the answers to the present settings
const REFUSED = 422; // the engine says no
const NOT_PLANNED = new Set(["parallel", "unified", "mmproj", "lora", "draft_model", "spec_type", "max_num_seqs", "job", "window_budget"]);

function section(title, className, ...children) {
  const heading = el("h2", { text: title });
  return { node: el("section", { class: `panel ${className}`, "aria-label": title }, heading, ...children), heading };
}

export class ModelView {
  #settings;
  #facts;
  #session;
  #estimate = {};
  #timer = 0;
  #failed = {}; // what has no answer to these settings -> its error
  #picked = null; // the setting that was changed last
  #isOneCache = false; // keys and values were found to go together

  constructor(settings, facts, signal) {
    this.#settings = settings;
    this.#facts = facts;
    this.#session = new Session(settings, signal);
    signal.addEventListener("abort", () => clearTimeout(this.#timer)); // of a page that was left nothing is said
    this.#parts(signal);
    this.#listen(signal);
    this.node = this.#layout(signal);
  }

  begin(check) {
    this.#showFacts();
    return this.#session.begin(check);
  }

  #parts(signal) {
    this.head = el("div", { class: "headline", tabIndex: -1 });
    this.fault = el("div", { role: "alert", class: "fault" });
    this.bars = el("div", { class: "bars" });
    this.plot = new Plot({
      onpick: (count, event) => this.#pick("context", String(count), event),
      onwant: (cache) => this.#session.drawCache(cache),
      onagain: () => this.#session.drawAgain(),
      signal,
    });
    this.strip = new Strip();
    this.table = scrollRoom(MODEL.breakdownTable);
    this.notes = el("ul", { class: "notes" });
    this.changeList = el("div");
    this.changes = section(MODEL.changesFit, "changes-panel", this.changeList);
    this.changes.node.hidden = true;
    this.changes.heading.tabIndex = -1;
    this.controls = controls(this.#settings, (key, value, event) => this.#pick(key, value, event));
    this.commands = commands(() => this.#planFields(), { isRunnable: () => this.#isRunnable(), signal });
    this.way = el("p", { class: "muted small way" });
  }

  #listen(signal) {
    const hear = (name, f) => this.#session.addEventListener(name, (event) => f.call(this, event.detail));
    hear("fit", this.#onFit);
    hear("check", this.#onCheck);
    hear("curves", this.#onCurves);
    hear("failed", this.#onFailed);
    machine.addEventListener("change", () => this.#moved(), { signal });
  }

  #layout(signal) {
    const answer = el("section", { class: "panel answer", "aria-label": MODEL.answer }, this.head, this.fault, this.way, this.bars);
    this.main = el(
      "div",
      { class: "model-main" },
      answer,
      this.changes.node,
      section(MODEL.plot, "plot-panel", this.plot.node).node,
      section(MODEL.layers, "strip-panel", this.strip.node).node,
      section(MODEL.breakdown, "bill-panel", this.table).node,
      section(MODEL.commands, "commands-panel", this.commands.node).node,
      section(MODEL.notes, "notes-panel", this.notes).node,
    );
    const column = side(this.controls.node, { onreset: () => this.#reset(), onlink: () => replaceQuery(this.#settings.query()), onsave: (f) => this.#save(f), signal });
    return el("div", { class: "model-grid" }, this.main, column);
  }

  /** All of one file is of the present settings; what does not come in time is left out. */
  async #save(f) {
    replaceQuery(this.#settings.query());
    await this.#session.rested(SAVE_MS);
    const answer = this.#session.present();
    if (!answer.fit?.estimate) {
      this.#tellFault(MODEL.nothingToSave);
      return;
    }
    try {
      await f(answer, this.plot.svg);
    } catch (error) {
      this.#tellFault(MODEL.saveFailed(error.message));
    }
  }

  #reset() {
    this.#settings.reset();
    this.#picked = null;
    this.#anew(performance.now());
  }

  #pick(key, value, event) {
    this.#settings.set(key, value);
    this.#picked = key;
    const started = event?.timeStamp ?? performance.now();
    if (ANEW.has(key) || (value === null && this.#settings.value(key) === null)) this.#anew(started);
    else this.#session.change(started);
    this.#leave();
  }

  /** Some models keep one cache for keys and values: the other half goes where the first was put. Whether it did. */
  #pair(about) {
    const other = about === ONE_TYPE && otherHalf(this.#picked, this.#settings.engine);
    if (!other) return false;
    const value = this.#settings.chosen[this.#picked] ?? null;
    this.#settings.set(other, value);
    this.#isOneCache = true;
    this.#picked = null;
    this.#session.change();
    this.#leave();
    announce(MODEL.oneCacheNow(value ?? "f16"));
    return true;
  }

  async #apply({ flags, machine: wished }, event) {
    this.changes.heading.focus(); // the button goes with its list
    if (wished) {
      machine.set(await wished());
      return;
    }
    for (const [key, value] of Object.entries(flags)) this.#settings.set(key, value);
    this.#anew(event.timeStamp);
  }

  /** The same once more; numbers that are those of the settings stay meanwhile. */
  #again() {
    if (this.#session.isPresent("fit")) this.#session.change();
    else this.#anew(performance.now());
  }

  #moved() {
    this.#settings.move();
    this.#anew(performance.now());
  }

  #anew(started) {
    this.#settings.settled = {};
    this.#session.anew(started);
    this.#leave();
  }

  /** The settings are others now: what is shown of those before looks so. */
  #leave() {
    this.#failed = {};
    this.#setStale(true);
    this.commands.follow();
  }

  #setStale(isStale) {
    this.node.classList.toggle("stale", isStale);
    this.main.setAttribute("aria-busy", String(isStale));
  }

  /** A file with weights, not a name of the catalog or a recorded header; and on this machine. */
  #isRunnable() {
    return machine.isThis && !this.#facts.mixable && !this.#settings.ref.startsWith("sample:");
  }

  /** With the engine that answered: to name it later changes nothing. */
  #planFields() {
    const { engine } = this.#settings.fitFields();
    const asked = Object.entries(this.#settings.checkFields()).filter(([key]) => !NOT_PLANNED.has(key));
    return { ...Object.fromEntries(asked), engine };
  }

  #tellFault(...told) {
    refill(this.fault, told.length ? [el("div", { class: "error" }, ...told)] : [], this.head);
  }

  /** What has no answer; what may have one the next time can be asked again. */
  #tellFailed() {
    const told = Object.values(this.#failed).filter((error) => error.status !== REFUSED);
    const again = told.find(isPassing);
    const { message } = again ?? told[0] ?? {};
    if (again) this.#tellFault(...fault(message, () => this.#again()));
    else this.#tellFault(...(message ? [message] : []));
  }

  #onFit(fit) {
    if (this.#pair(fit.refused_about)) return;
    const { check } = this.#session;
    const nameOf = poolNames(fit, check);
    this.#setStale(!this.#session.isPresent("fit"));
    this.#setAnswered(fit.estimate !== null);
    this.#showHead(fit);
    delete this.#failed.fit;
    this.#tellFailed();
    this.bars.replaceChildren(...bars(fit));
    if (fit.estimate) {
      this.table.replaceChildren(billTable(fit.estimate, nameOf));
      this.strip.show(fit.estimate.layer_list ?? [], nameOf);
    }
    this.notes.replaceChildren(...notes(fit, check));
    this.commands.show(fit);
    this.plot.move(fit, cacheName(this.#settings));
    this.#showControls(fit, check);
    this.#sayLater(fit);
  }

  #showHead(fit) {
    this.head.classList.remove("present");
    this.head.replaceChildren(...headline(fit, this.#session.check, this.#session.isPresent("check")));
  }

  #onCurves({ curves, refused, failure }) {
    const offered = cacheTypes(this.#settings.engine);
    this.plot.show({ curves, offered, refused, failure, present: cacheName(this.#settings) });
  }

  #onCheck(check) {
    delete this.#failed.check;
    this.#tellFailed();
    this.way.textContent = [check.machine.name, engineWords(check.engine), check.way].filter(Boolean).join(" · ");
    const list = changeList(check, machine, (change, event) => this.#apply(change, event));
    this.changes.heading.textContent = changesTitle(check);
    this.changeList.replaceChildren(...[list].filter(Boolean));
    if (!list) this.#keepFocus();
    this.changes.node.hidden = !list;
    if (this.#session.isPresent("fit")) this.#refresh(check);
    else this.#setStale(true);
  }

  /** Who was in the list when it goes is led to the answer. */
  #keepFocus() {
    if (this.changes.node.contains(document.activeElement)) this.head.focus();
  }

  /** The figures that only a check knows. */
  #refresh(check) {
    const { fit } = this.#session;
    this.#showHead(fit);
    this.notes.replaceChildren(...notes(fit, check));
    this.#showControls(fit, check);
  }

  #onFailed({ error, what }) {
    const isRefused = error.status === REFUSED;
    if (isRefused && this.#pair(error.about)) return;
    this.#failed[what] = error;
    this.#tellFailed();
    if (what === "check" && isPassing(error) && this.#session.isPresent("fit")) return; // the numbers are those of the settings
    this.#setStale(true);
    this.head.classList.toggle("present", isRefused);
    if (isRefused) this.head.replaceChildren(el("p", { class: "told" }, verdict("refused", this.#settings.engine), " ", el("span", { class: "sentence", text: error.message })));
    else if (what === "check") this.head.replaceChildren(); // the verdict of other settings does not stand beside it
    if (what === "check") this.#showUnanswered();
    clearTimeout(this.#timer);
    if (isRefused) announce(error.message); // the others are told as an alert
  }

  /** There are no numbers; the controls still stand, so that another engine can be chosen. */
  #showUnanswered() {
    const { fit, check } = this.#session;
    this.#settings.engine = this.#settings.chosen.engine ?? this.#settings.engine;
    this.#setAnswered(false);
    if (fit) this.#showControls({ ...fit, engine: this.#settings.engine }, check);
  }

  #setAnswered(isAnswered) {
    if (!isAnswered) this.#keepFocus();
    this.node.classList.toggle("unanswered", !isAnswered);
  }

  #showControls(fit, check) {
    if (fit.estimate) this.#estimate = fit.estimate; // of a refused load there is none: the last one's layers
    const estimate = this.#estimate;
    this.controls.show({
      engine: fit.engine,
      context: this.#contextOf(fit),
      native: fit.native_context && fit.native_context * fit.streams,
      largest: check?.max_context,
      because: check?.context_because,
      taken: estimate.facts,
      layers: estimate.layer_list?.length ?? 0,
      onGpu: estimate.backend !== "cpu",
      gpu: (check?.machine?.devices ?? []).length > 0,
      experts: this.#facts.experts,
      mixable: this.#facts.mixable,
      oneCache: this.#isOneCache && MODEL.oneCache,
    });
  }

  /** A slider that was moved on meanwhile stays where it is. */
  #contextOf(fit) {
    const chosen = this.#session.isPresent("fit") ? null : readTokens(String(this.#settings.chosen.context ?? ""));
    return chosen ?? fit.context_tokens;
  }

  #showFacts() {
    const { told } = this.#facts;
    if (!told) return;
    const active = this.#facts.experts && told.active_parameters ? COMMON.active(told.active_parameters) : null;
    const parts = [told.architecture, told.parameters && COMMON.parameters(told.parameters), active, told.mix, told.native_context && MODEL.trainedFor(told.native_context), told.licence];
    const line = document.querySelector(".model-facts");
    if (line) line.textContent = parts.filter(Boolean).join(" · ");
  }

  #sayLater(fit) {
    clearTimeout(this.#timer);
    const word = verdictWord(fit.refused ? "refused" : fit.status, fit.engine);
    this.#timer = setTimeout(() => announce(MODEL.spoken(word, sentence(fit.refused ?? fit.told, fit.status))), SAID_MS);
  }
}
