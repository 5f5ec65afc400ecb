// The quantisations of a model, one row each, as a group of radio buttons: the chosen one is marked.

import { call, isPassing } from "./api.js";
import { verdict } from "./bar.js";
import { el, fault } from "./dom.js";
import { verdictWord } from "./engines.js";
import { gb } from "./format.js";
import { LADDER } from "./texts.js";

const SKELETON_ROWS = 8;
const PAUSE_MS = 400; // after a check: the settings may change again
const MOVES = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
const COLUMNS = ["quant", "download", "verdict", "speed", "context", "loss"];

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const sizeText = (row) => {
  const size = row.download_bytes ?? row.size_bytes;
  return size ? gb(size) : LADDER.noValue;
};

function lossText({ loss }) {
  if (!loss) return LADDER.notMeasured;
  if (loss.value === 0) return LADDER.unchanged;
  return loss.basis === "measured" ? LADDER.loss(loss.value) : LADDER.lossAbout(loss.value);
}

/** The row as one sentence, for screen readers. */
function labelOf(row, engine) {
  return LADDER.label([
    row.quant,
    row.is_chosen && LADDER.auto,
    verdictWord(row.status, engine),
    row.runs_on,
    LADDER.download(sizeText(row)),
    row.speed && LADDER.speed(row.speed.typical),
    LADDER.maxContext(row.max_context),
    LADDER.lossLabel(lossText(row)),
    row.told,
  ]);
}

function cells(row, engine) {
  const name = el("span", { class: "quant-name" }, el("strong", { text: row.quant }), row.is_chosen && autoMark());
  const values = {
    quant: [el("span", { class: "dot" }), name],
    download: [sizeText(row)],
    verdict: [verdict(row.status, engine, row.runs_on)],
    speed: [row.speed ? LADDER.speed(row.speed.typical) : LADDER.noValue],
    context: [LADDER.context(row.max_context)],
    loss: [lossText(row)],
  };
  return COLUMNS.map((key) => el("span", { class: `cell at-${key}` }, values[key]));
}

const autoMark = () => el("small", { class: "muted", text: LADDER.auto });

/** Calls onchoose(flags, event), with {} for EdgeKit's choice, and onrows(rows) when the rows change. */
export class QuantLadder {
  rows = [];
  #fields;
  #weights;
  #onchoose;
  #onrows;
  #of = null; // the fields of the rows, as JSON
  #engine = null;
  #request = new AbortController();

  constructor({ fields, weights, onchoose, onrows, signal }) {
    Object.assign(this, { node: el("div", { class: "ladder" }) });
    this.#fields = fields;
    this.#weights = weights;
    this.#onchoose = onchoose;
    this.#onrows = onrows;
    this.#skeleton();
    signal.addEventListener("abort", () => this.#request.abort());
  }

  /** Cancels a running request while settings change, so that nothing waits for it. */
  hold() {
    if (this.node.ariaBusy === "true") this.#of = null;
    this.#request.abort();
  }

  /** Requests the rows again if the settings have changed. */
  async refresh() {
    const fields = this.#fields();
    const now = JSON.stringify(fields);
    if (now === this.#of) return this.mark();
    this.#request.abort();
    this.#request = new AbortController();
    const { signal } = this.#request;
    this.#of = now;
    this.node.classList.add("stale");
    this.node.ariaBusy = "true";
    try {
      if (this.rows.length) await pause(PAUSE_MS);
      if (signal.aborted) return null;
      const found = await call("ladder", fields, { signal });
      if (!signal.aborted) this.#show(found);
    } catch (error) {
      if (!signal.aborted) this.#fail(error);
    }
    return null;
  }

  #end() {
    this.node.classList.remove("stale");
    this.node.ariaBusy = null;
  }

  #fail(error) {
    this.#of = null;
    this.#end();
    this.rows = [];
    this.#onrows(this.rows);
    const text = LADDER.failed(error.message);
    const nodes = isPassing(error) ? fault(text, () => this.refresh()) : [el("p", { class: "muted", text })];
    this.node.replaceChildren(...nodes);
  }

  #show(found) {
    this.#end();
    this.rows = found.rows;
    this.#engine = found.engine.name;
    const isInside = this.node.contains(document.activeElement);
    const rows = this.rows.map((row, at) => this.#rowNode(row, at));
    const group = el("div", { class: "rungs", role: "radiogroup", "aria-label": LADDER.title }, rows);
    group.addEventListener("keydown", (event) => this.#key(event));
    this.node.replaceChildren(headRow(), group);
    this.mark();
    if (isInside) this.#radios().find((one) => one.tabIndex === 0)?.focus({ preventScroll: true });
    this.#onrows(this.rows);
  }

  #rowNode(row, at) {
    const props = { class: "rung", role: "radio", "aria-label": labelOf(row, this.#engine), "data-quant": row.quant };
    const node = el("div", { ...props, title: row.told ?? row.headline }, cells(row, this.#engine));
    node.addEventListener("click", (event) => this.#choose(at, event));
    return node;
  }

  #radios() {
    return [...this.node.querySelectorAll('[role="radio"]')];
  }

  /** Marks the row of the current settings; Tab goes to it. */
  mark() {
    const chosen = this.chosenRow();
    this.#radios().forEach((node, at) => {
      const isChosen = this.rows[at] === chosen;
      node.setAttribute("aria-checked", String(isChosen));
      node.tabIndex = isChosen || (!chosen && at === 0) ? 0 : -1;
    });
  }

  /** The row of the chosen weights, else that of EdgeKit's choice. */
  chosenRow() {
    const names = Object.values(this.#weights()).map((name) => String(name).toLowerCase());
    if (!names.length) return this.rows.find((row) => row.is_chosen) ?? null;
    const isNamed = (row) =>
      [row.quant, ...Object.values(row.flags)].some((name) => names.includes(name.toLowerCase()));
    return this.rows.find(isNamed) ?? null;
  }

  #key(event) {
    const radios = this.#radios();
    const now = radios.indexOf(document.activeElement);
    if (now < 0) return;
    const ends = { Home: 0, End: radios.length - 1 };
    const to = event.key in MOVES ? (now + MOVES[event.key] + radios.length) % radios.length : ends[event.key];
    if (event.key === "Enter" || event.key === " ") this.#choose(now, event);
    else if (to === undefined) return;
    else focusOne(radios, to);
    event.preventDefault();
  }

  #choose(at, event) {
    const row = this.rows[at];
    focusOne(this.#radios(), at);
    if (row === this.chosenRow()) return;
    this.#onchoose(row.is_chosen ? {} : row.flags, event);
    this.mark();
  }

  #skeleton() {
    const row = () => el("div", { class: "rung" }, el("span", { class: "cell skeleton", text: LADDER.noValue }));
    const rows = Array.from({ length: SKELETON_ROWS }, row);
    this.node.replaceChildren(
      headRow(),
      el("div", { class: "rungs", "aria-label": LADDER.loading, role: "status" }, rows),
    );
  }
}

function focusOne(radios, at) {
  radios.forEach((node, i) => (node.tabIndex = i === at ? 0 : -1));
  radios[at].focus();
}

/** The headings. Hidden from screen readers, because the label of each row has everything. */
function headRow() {
  const heads = COLUMNS.map((key) =>
    el("span", { class: `cell at-${key}`, text: LADDER.columns[key], title: titleOf(key) })
  );
  return el("div", { class: "rung head", "aria-hidden": "true" }, heads);
}

const titleOf = (key) => (key === "loss" ? LADDER.lossHint : null);
