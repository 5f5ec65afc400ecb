// The answer for one model: built once, updated with each response. Folded panels are not computed.

import { connection, isPassing } from "./api.js";
import { bars, headline, isSample, setupLine, spokenSentence } from "./answer.js";
import { verdict } from "./bar.js";
import { billTable, notes, poolNames } from "./breakdown.js";
import { cacheName, cacheTypes, ONE_TYPE, otherHalf } from "./cache_names.js";
import { changeList, changesTitle } from "./changes.js";
import { checkCommand, runCommand } from "./command_line.js";
import { commandBlock, Commands } from "./commands.js";
import { readTokens } from "./context_control.js";
import { controls } from "./controls.js";
import { announce, el, fault, refill, scrollRoom } from "./dom.js";
import { engineNamed, verdictWord } from "./engines.js";
import { fold } from "./fold.js";
import { wholeK } from "./format.js";
import { QuantLadder } from "./ladder.js";
import { machine, machineName } from "./machine.js";
import { Plot } from "./plot.js";
import { replaceQuery } from "./router.js";
import { Session } from "./session.js";
import { ANEW } from "./settings.js";
import { openShare } from "./share.js";
import { side } from "./side.js";
import { Strip } from "./strip.js";
import { COMMANDS, LADDER, MODEL } from "./texts.js";

const ANNOUNCE_MS = 900; // after the last change: screen readers hear the verdict, not every step
const SAVE_MS = 8000; // how long a download waits for the answers to the current settings
const REFUSED = 422; // HTTP status: the engine refuses the model

function section(title, className, ...children) {
  return el("section", { class: `panel ${className}`, "aria-label": title }, el("h2", { text: title }), ...children);
}

export class ModelView {
  #settings;
  #facts;
  #session;
  #estimate = {};
  #timer = 0;
  #failed = {}; // "fit" or "check" -> its error with the current settings
  #picked = null; // key of the last changed setting
  #isOneCache = false; // the model needs the same cache type for K and V

  constructor(settings, facts, signal) {
    this.#settings = settings;
    this.#facts = facts;
    this.#session = new Session(settings, signal);
    signal.addEventListener("abort", () => clearTimeout(this.#timer)); // no announcement after leaving the page
    this.#parts(signal);
    this.#folds(signal);
    this.#listen(signal);
    this.node = this.#layout(signal);
  }

  /** Shows the first answer. Resolves when its figures are there. */
  begin(check) {
    return this.#session.begin(check);
  }

  #parts(signal) {
    const settings = this.#settings;
    this.head = el("div", { class: "headline", tabIndex: -1 });
    this.fault = el("div", { role: "alert", class: "fault" });
    this.bars = el("div", { class: "bars" });
    this.setup = el("p", { class: "muted small way" });
    this.commands = new Commands({
      fields: (engine) => settings.planFields(engine),
      own: () => this.#ownCommands(),
      signal,
    });
    this.ladder = new QuantLadder({
      fields: () => settings.ladderFields(),
      weights: () => settings.weights,
      onchoose: (flags, event) => this.#weigh(flags, event),
      onrows: () => this.#showQuant(),
      signal,
    });
    this.controls = controls(settings, {
      onpick: (key, value, event) => this.#pick(key, value, event),
      onweights: (flags, event) => this.#weigh(flags, event),
      oncache: (flags, event) => this.#pickCache(flags, event),
    });
    this.side = side(this.controls.node, {
      onreset: () => this.#reset(),
      onshare: () => this.#share(),
      signal,
    });
  }

  /** The panels that unfold; each is drawn only while it is open. */
  #folds(signal) {
    this.plot = new Plot({
      onpick: (count, event) => this.#pick("context", String(count), event),
      onwant: (cache) => this.#session.drawCache(cache),
      onagain: () => this.#session.drawAgain(),
      signal,
    });
    this.strip = new Strip();
    this.table = scrollRoom(MODEL.breakdownTable);
    this.estimateCommand = el("div");
    this.notes = el("ul", { class: "notes" });
    this.changeList = el("div");
    this.changes = fold(MODEL.changesMore, "changes-panel", this.changeList, () => {});
    this.plotFold = fold(MODEL.plot, "plot-panel", this.plot.node, () => this.#movePlot());
    this.plotFold.node.addEventListener("toggle", () => this.#drawCurves());
    this.stripFold = fold(MODEL.layers, "strip-panel", this.strip.node, () => this.#showStrip());
    const bill = el("div", {}, this.table, this.estimateCommand);
    this.billFold = fold(MODEL.breakdown, "bill-panel", bill, () => this.#showBill());
    this.notesFold = fold(MODEL.notes, "notes-panel", this.notes, () => this.#showNotes());
  }

  #listen(signal) {
    const hear = (name, f) => this.#session.addEventListener(name, (event) => f.call(this, event.detail));
    hear("fit", this.#onFit);
    hear("check", this.#onCheck);
    hear("curves", this.#onCurves);
    hear("failed", this.#onFailed);
    machine.addEventListener("change", () => this.#moved(), { signal });
    connection.addEventListener("lost", () => this.#lose(), { signal });
    connection.addEventListener("back", () => this.#again(), { signal });
  }

  #layout() {
    const hint = isSample(this.#settings.ref) && el("p", { class: "muted small", text: COMMANDS.sample });
    const commands = [this.commands.node, this.setup, hint];
    const answer = el("section", { class: "panel answer", "aria-label": MODEL.answer }, this.head, this.fault);
    const memory = el("section", { class: "panel bars-panel", "aria-label": MODEL.memories }, this.bars);
    this.ladderPanel = section(LADDER.title, "ladder-panel", this.ladder.node);
    this.main = el(
      "div",
      { class: "model-main" },
      answer,
      memory,
      el("section", { class: "panel commands-panel", "aria-label": COMMANDS.title }, commands),
      this.side.open,
      this.ladderPanel,
      this.changes.node,
      this.plotFold.node,
      this.stripFold.node,
      this.billFold.node,
      this.notesFold.node,
    );
    return el("div", { class: "model-grid" }, this.main, this.side.node);
  }

  // --- user actions

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

  #pickCache(flags, event) {
    for (const [key, value] of Object.entries(flags)) this.#settings.set(key, value);
    this.#picked = null;
    if (Object.values(flags).includes(null)) this.#anew(event.timeStamp);
    else this.#session.change(event.timeStamp);
    this.#leave();
  }

  #weigh(flags, event) {
    this.#settings.setWeights(flags);
    this.#picked = null;
    this.#anew(event.timeStamp);
    this.ladder.mark();
  }

  /** For models that need the same cache type for K and V: sets the other one too. Returns whether it did. */
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

  async #apply({ flags, machine: newMachine }, event) {
    this.changes.summary.focus(); // the button is about to disappear
    if (newMachine) {
      machine.set(await newMachine());
      return;
    }
    for (const [key, value] of Object.entries(flags)) this.#settings.set(key, value);
    this.#anew(event.timeStamp);
  }

  #share() {
    replaceQuery(this.#settings.query());
    const settings = this.#settings;
    const name = settings.name.replaceAll(/[^\w.-]+/g, "-").slice(0, 60) || "edgekit";
    openShare({
      fields: settings.checkFields(),
      name,
      title: this.#facts.title ?? settings.name,
      machine: this.#session.check?.machine.name ?? machineName(),
      command: checkCommand("share", settings, machine, ["-o", `${name}.html`, "--badge", "badge.svg"]),
      answer: () => this.#answer(),
    });
  }

  /** The answers to the current settings; null if the estimate does not come in time. */
  async #answer() {
    await this.#session.rested(SAVE_MS);
    const found = this.#session.present();
    return found.fit?.estimate ? { link: location.href, ...found } : null;
  }

  // --- requests

  /** Requests everything again; figures for the current settings stay meanwhile. */
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

  /** After a change of settings: greys out the old figures. */
  #leave() {
    this.#failed = {};
    this.ladder.hold();
    this.#setStale(true);
  }

  #setStale(isStale) {
    this.node.classList.toggle("stale", isStale);
    this.main.setAttribute("aria-busy", String(isStale));
  }

  /** The server has stopped: keeps the last figures, greyed out. */
  #lose() {
    this.#setStale(true);
    this.#tellFault(MODEL.serverGone);
  }

  #tellFault(...nodes) {
    refill(this.fault, nodes.length ? [el("div", { class: "error" }, ...nodes)] : [], this.head);
  }

  /** Shows the errors, with a "Try again" button for those that may go away. */
  #tellFailed() {
    const errors = Object.values(this.#failed).filter((error) => error.status !== REFUSED);
    const again = errors.find(isPassing);
    if (connection.isLost) this.#tellFault(MODEL.serverGone);
    else if (again) this.#tellFault(...fault(again.message, () => this.#again()));
    else this.#tellFault(...errors.slice(0, 1).map((error) => error.message));
  }

  // --- showing

  #onFit(fit) {
    if (this.#pair(fit.refused_about)) return;
    const { check } = this.#session;
    this.#setStale(!this.#session.isPresent("fit"));
    this.#setAnswered(fit.estimate !== null);
    this.#showHead(fit);
    delete this.#failed.fit;
    this.#tellFailed();
    this.bars.replaceChildren(...bars(fit));
    if (!this.#session.isPresent("check")) this.commands.follow(fit.command);
    this.#refreshFolds();
    this.#showControls(fit, check);
    this.#sayLater(fit);
  }

  #refreshFolds() {
    for (const one of [this.plotFold, this.stripFold, this.billFold, this.notesFold]) one.refresh();
  }

  #showHead(fit) {
    this.head.classList.remove("present");
    const { check } = this.#session;
    this.head.replaceChildren(...headline(fit, check, this.#session.isPresent("check")));
    this.setup.textContent = setupLine(fit, check);
  }

  #showBill() {
    const { fit, check } = this.#session;
    if (!fit?.estimate) return;
    this.table.replaceChildren(billTable(fit.estimate, poolNames(fit, check)));
    const text = fit.estimate_command;
    refill(this.estimateCommand, [commandBlock({ name: MODEL.estimateCommand, text }, true)], this.billFold.summary);
  }

  #showStrip() {
    const { fit, check } = this.#session;
    if (fit?.estimate) this.strip.show(fit.estimate.layer_list ?? [], poolNames(fit, check));
  }

  #showNotes() {
    const { fit, check } = this.#session;
    if (fit) this.notes.replaceChildren(...notes(fit, check));
  }

  #movePlot() {
    if (this.#session.fit) this.plot.move(this.#session.fit, cacheName(this.#settings));
  }

  /** Requests curves only while the plot is open. */
  #drawCurves() {
    this.#session.drawsCurves = this.plotFold.node.open;
    if (this.#session.drawsCurves && this.#session.check) this.#session.drawAgain();
  }

  #onCurves({ curves, refused, failure }) {
    const offered = cacheTypes(this.#settings.engine);
    this.plot.show({ curves, offered, refused, failure, present: cacheName(this.#settings) });
  }

  #onCheck(check) {
    delete this.#failed.check;
    this.#tellFailed();
    this.#showChanges(check);
    this.commands.show(check);
    this.ladder.refresh();
    this.side.summarise([check.quantization, wholeK(check.context_tokens), check.cache]);
    if (this.#session.isPresent("fit")) this.#refresh(check);
    else this.#setStale(true);
  }

  /** Shows the suggested changes: above the quantisations if the model does not fit, else folded below them. */
  #showChanges(check) {
    const list = changeList(check, machine, (change, event) => this.#apply(change, event));
    const { node, heading, summary } = this.changes;
    const isInside = node.contains(document.activeElement);
    heading.textContent = changesTitle(check);
    this.changeList.replaceChildren(list ?? el("p", { class: "muted", text: MODEL.noChanges }));
    const isNeeded = !check.can_load && list !== null;
    const isAbove = node.nextElementSibling === this.ladderPanel;
    if (isNeeded && !isAbove) this.ladderPanel.before(node);
    if (!isNeeded && isAbove) this.ladderPanel.after(node);
    if (isNeeded !== isAbove) node.open = isNeeded;
    if (isInside) summary.focus({ preventScroll: true });
  }

  /** Moves the focus from a panel that disappears to the answer. */
  #keepFocus() {
    if (this.changes.node.contains(document.activeElement)) this.head.focus();
  }

  /** Updates the figures that come from the check. */
  #refresh(check) {
    const { fit } = this.#session;
    this.#showHead(fit);
    this.notesFold.refresh();
    this.#showControls(fit, check);
  }

  #onFailed({ error, what }) {
    const isRefused = error.status === REFUSED;
    if (isRefused && this.#pair(error.about)) return;
    this.#failed[what] = error;
    this.#tellFailed();
    const hasFigures = this.#session.isPresent("fit"); // of these settings
    if (what === "check" && isPassing(error) && hasFigures) return;
    this.#setStale(true);
    if (isPassing(error)) return; // the last answer stays, greyed out
    this.head.classList.toggle("present", isRefused);
    if (isRefused) this.head.replaceChildren(this.#refusal(error));
    else if (what === "check") this.head.replaceChildren(); // remove the verdict of other settings
    if (what === "check") this.#showUnanswered();
    clearTimeout(this.#timer);
    if (isRefused) announce(error.message); // the others are shown as an alert
  }

  #refusal(error) {
    const words = el("span", { class: "sentence", text: error.message });
    return el("p", { class: "told" }, verdict("refused", this.#settings.engine), " ", words);
  }

  /** No figures: the controls stay, so that another engine can be chosen. */
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
      oneCache: this.#isOneCache && MODEL.oneCache,
      ...this.#quantFacts(),
    });
  }

  #quantFacts() {
    return { ladder: this.ladder, quantization: this.#session.check?.quantization };
  }

  #showQuant() {
    this.controls.showQuant(this.#quantFacts());
  }

  /** Updates the controls, except a slider that has moved on since. */
  #contextOf(fit) {
    const isPresent = this.#session.isPresent("fit");
    const chosen = isPresent ? null : readTokens(String(this.#settings.chosen.context ?? ""));
    return chosen ?? fit.context_tokens;
  }

  /** EdgeKit's own commands for these settings. */
  #ownCommands() {
    const settings = this.#settings;
    const { check } = this.#session;
    const engine = engineNamed(check?.engine.name);
    const rows = [{ name: COMMANDS.edgekitCheck, text: checkCommand("check", settings, machine) }];
    const isRunnable = check?.can_load && !isSample(settings.ref);
    if (isRunnable && engine?.runs) rows.push({ name: COMMANDS.edgekitRun, text: runCommand("run", settings) });
    if (isRunnable && engine?.serves) rows.push({ name: COMMANDS.edgekitServe, text: runCommand("serve", settings) });
    return rows;
  }

  #spoken(fit) {
    return spokenSentence(fit, this.#session.check, this.#session.isPresent("check"));
  }

  #sayLater(fit) {
    clearTimeout(this.#timer);
    const word = verdictWord(fit.refused ? "refused" : fit.status, fit.engine);
    const say = () => announce(MODEL.spoken(word, this.#spoken(fit)));
    this.#timer = setTimeout(say, ANNOUNCE_MS);
  }
}
