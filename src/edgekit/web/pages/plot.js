// The plot of memory vs context: one line per cache type. It follows the settings and can be clicked.

import { isPassing } from "./api.js";
import { el, fault, oncePerFrame, refill, scrollRoom, svg } from "./dom.js";
import { engineNamed } from "./engines.js";
import { bytes } from "./format.js";
import { axes, crosshair, lines, marker, rules } from "./plot_draw.js";
import { PlotLegend, plotTable } from "./plot_legend.js";
import { bytesSpan, contextSpan, scales } from "./plot_scale.js";
import { COMMON, PLOT } from "./texts.js";

const HEIGHT = 340;
const NARROW = 480;
const COLOURS = 9;
const LETTER = 7; // pixels of a name, about

/** The margins: the axis on the left, names of lines on the right. */
function boxOf(width, curves) {
  const isNarrow = width < NARROW;
  const left = isNarrow ? 40 : 52;
  const name = 14 + LETTER * Math.max(...curves.map((curve) => curve.cache.length));
  const right = isNarrow ? Math.min(96, Math.max(58, name)) : Math.min(150, Math.max(92, name));
  return { left, top: 26, width: width - left - right, height: HEIGHT - 26 - 44 };
}

/** A colour for each cache type; with more types than colours, those shown get different ones. */
function coloursOf(caches, drawn) {
  const free = new Set(Array.from({ length: COLOURS }, (_, i) => i));
  const found = new Map(caches.map((cache, i) => [cache, i % COLOURS]));
  for (const cache of drawn) {
    const [first] = free;
    const colour = free.has(found.get(cache)) ? found.get(cache) : (first ?? found.get(cache));
    free.delete(colour);
    found.set(cache, colour);
  }
  return found;
}

/** Whether layers could be moved to another memory, so that a longer context may fit. */
function isMovable({ engine, estimate }) {
  return engineNamed(engine)?.pins_placement && estimate !== null && estimate.backend !== "cpu";
}

/** onpick(tokens, event): a context was chosen; onwant(cache): a line is missing; onagain(): request all again. */
export class Plot {
  #curves = []; // of all memories
  #memory = null;
  #present = "";
  #fit = null;
  #isLog = false;
  #index = null; // of the crosshair
  #view = null;
  #width = 720;
  #why = [el("p", { text: PLOT.loading })]; // shown instead of the plot
  #onpick;
  #onagain;

  constructor({ onpick, onwant, onagain, signal }) {
    this.#onpick = onpick;
    this.#onagain = onagain;
    this.svg = svg("svg", { class: "plot", "aria-hidden": "true" });
    this.legend = new PlotLegend({ onwant, onchange: () => this.#redraw() });
    this.tip = el("div", { class: "plot-tip", hidden: true });
    this.table = scrollRoom(PLOT.tableLabel);
    this.memories = el("select", { id: "plot-memory", oninput: () => this.#choose(this.memories.value) });
    this.#build();
    this.#listen(signal);
  }

  #build() {
    const log = el("input", {
      type: "checkbox",
      id: "plot-log",
      oninput: (event) => this.#setLog(event.target.checked),
    });
    this.beyond = el("p", { class: "hint" });
    this.placed = el("p", { class: "hint" });
    this.none = el("div", { class: "plot-none muted" }, ...this.#why);
    this.picker = el("label", { class: "row", hidden: true }, PLOT.memory, this.memories);
    this.stage = el(
      "div",
      {
        class: "plot-stage",
        tabIndex: 0,
        role: "slider",
        "aria-label": PLOT.stage,
        "aria-valuemin": 0,
        "aria-valuemax": 0,
        "aria-valuenow": 0,
      },
      this.svg,
      this.tip,
    );
    this.node = el(
      "div",
      {},
      el("div", { class: "row spread" }, this.picker, el("label", { class: "check small" }, log, PLOT.logScale)),
      el("div", { class: "plot-room" }, this.stage, this.none),
      this.beyond,
      this.placed,
      this.legend.drawn,
      this.legend.more,
      el(
        "details",
        { class: "unfold", ontoggle: () => this.#tabulate() },
        el("summary", { text: PLOT.table }),
        this.table,
      ),
    );
  }

  #listen(signal) {
    const resize = oncePerFrame(() => this.#resize());
    const observer = new ResizeObserver(resize);
    observer.observe(this.stage);
    signal.addEventListener("abort", () => observer.disconnect());
    this.stage.addEventListener("pointermove", (event) => this.#point(this.#nearest(event)));
    this.stage.addEventListener("pointerleave", () => this.#point(null));
    this.stage.addEventListener("blur", () => this.#point(null));
    this.stage.addEventListener("click", (event) => this.#take(this.#nearest(event), event));
    this.stage.addEventListener("keydown", (event) => this.#key(event));
  }

  show({ curves, offered, refused, present, failure }) {
    this.#why = this.#whyNone(failure);
    const caches = [...new Set([...offered, ...curves.map((curve) => curve.cache)])];
    const colours = coloursOf(caches, new Set(curves.map((curve) => curve.cache)));
    this.#curves = curves.map((curve) => ({ ...curve, colour: colours.get(curve.cache) }));
    this.#present = present;
    this.#listMemories();
    this.legend.show(
      caches.map((cache) => ({
        cache,
        colour: colours.get(cache),
        curves: this.#curves.filter((curve) => curve.cache === cache),
        refused: refused.get(cache),
      })),
    );
    this.#redraw();
  }

  #whyNone(failure) {
    if (!failure) return [el("p", { text: PLOT.empty })];
    const told = PLOT.failed(failure.message);
    return isPassing(failure) ? fault(told, () => this.#onagain()) : [el("p", { text: told })];
  }

  /** Moves the marker, and marks the current line. */
  move(fit, present) {
    this.#fit = fit;
    this.placed.textContent = isMovable(fit) ? PLOT.placement : "";
    const isSame = present === this.#present && this.#view && this.#spans();
    this.#present = present;
    if (isSame) this.#mark();
    else this.#draw();
  }

  /** Whether the marker is inside the plot. */
  #spans() {
    const { sizes, contexts } = this.#view;
    return (this.#sizeNow() ?? 0) <= sizes[1] && (this.#fit.context_tokens ?? 0) <= contexts[1];
  }

  #listMemories() {
    const names = [...new Set(this.#curves.map((curve) => curve.memory))];
    if (!names.includes(this.#memory)) this.#memory = this.#tightest(names);
    this.picker.hidden = names.length < 2;
    this.memories.replaceChildren(
      ...names.map((name) => el("option", { value: name, text: name, selected: name === this.#memory })),
    );
  }

  #tightest(names) {
    const bars = (this.#fit?.bars ?? []).filter((bar) => names.includes(bar.memory));
    bars.sort((a, b) => (b.utilization ?? Infinity) - (a.utilization ?? Infinity));
    return bars[0]?.memory ?? names[0];
  }

  #choose(name) {
    this.#memory = name;
    this.#redraw();
  }

  #redraw() {
    this.#draw();
    this.#tabulate();
  }

  #setLog(isLog) {
    this.#isLog = isLog;
    this.#draw();
  }

  #resize() {
    const width = this.stage.clientWidth;
    if (!width || width === this.#width) return;
    this.#width = width;
    this.#draw();
  }

  #shown() {
    return this.#curves.filter((curve) =>
      curve.memory === this.#memory && curve.points.length && this.legend.isShown(curve.cache)
    );
  }

  #sizeNow() {
    return this.#fit?.bars.find((bar) => bar.memory === this.#memory)?.required_bytes;
  }

  #draw() {
    const curves = this.#shown();
    this.svg.setAttribute("viewBox", `0 0 ${this.#width} ${HEIGHT}`);
    this.svg.setAttribute("width", this.#width);
    this.svg.setAttribute("height", HEIGHT);
    this.#view = curves.length ? this.#viewOf(curves) : null;
    refill(this.none, this.#view ? [] : this.#why, this.stage);
    if (!this.#view) {
      this.svg.replaceChildren();
      this.beyond.textContent = "";
      this.#point(null);
      return;
    }
    const { box } = this.#view;
    const clip = svg(
      "clipPath",
      { id: "plot-clip" },
      svg("rect", { x: box.left, y: box.top, width: box.width, height: box.height }),
    );
    this.cross = svg("g", { class: "cross" });
    this.mark = svg("g");
    this.svg.replaceChildren(
      svg("defs", {}, clip),
      axes(this.#view),
      lines({ ...this.#view, present: this.#present }),
      this.mark,
      rules(this.#view),
      this.cross,
    );
    this.#mark();
    const last = curves[0].points.length - 1;
    this.stage.setAttribute("aria-valuemax", last);
    this.#point(this.#index === null ? null : Math.min(this.#index, last)); // the crosshair follows the new curves
  }

  #viewOf(curves) {
    const box = boxOf(this.#width, curves);
    const contexts = contextSpan(curves, this.#fit?.context_tokens);
    const { budget_bytes: budget, native } = curves[0];
    const sizes = bytesSpan(curves, budget, this.#sizeNow() ?? 0);
    return {
      box,
      curves,
      contexts,
      sizes,
      budget,
      native,
      isLog: this.#isLog,
      scale: scales(box, contexts, sizes, this.#isLog),
    };
  }

  #mark() {
    const size = this.#sizeNow();
    if (!this.#view) return;
    if (size === undefined) this.mark.replaceChildren();
    else this.mark.replaceChildren(marker(this.#view, { context: this.#fit.context_tokens, size }));
    this.#tellBeyond();
  }

  /** Curves end at the largest context; the setting may be beyond it. */
  #tellBeyond() {
    const { curves, native } = this.#view;
    const last = curves[0].points.at(-1)[0];
    const isBeyond = (this.#fit?.context_tokens ?? 0) > last;
    this.beyond.textContent = isBeyond ? PLOT.beyond(last, last === native) : "";
  }

  #nearest(event) {
    if (!this.#view) return null;
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const away = this.#view.curves[0].points.map(([count]) => Math.abs(this.#view.scale.x(count) - x));
    return away.indexOf(Math.min(...away));
  }

  #point(index) {
    this.#index = index;
    this.tip.hidden = index === null || !this.#view;
    this.cross?.replaceChildren(...(this.tip.hidden ? [] : crosshair(this.#view, index)));
    if (!this.tip.hidden) this.#tell(index);
  }

  #tell(index) {
    const { curves, box, scale } = this.#view;
    const count = curves[0].points[index][0];
    const rows = curves.filter((curve) => curve.points[index]).map((curve) => [curve, curve.points[index][1]]);
    const list = rows.map(([curve, size]) =>
      el(
        "li",
        {},
        el("span", { class: `k${curve.colour}`, text: curve.cache }),
        el("span", { title: COMMON.bytes(size), text: bytes(size) }),
      )
    );
    this.tip.replaceChildren(el("strong", { text: COMMON.tokens(count) }), el("ul", {}, ...list));
    const isRight = scale.x(count) > box.left + box.width / 2;
    this.tip.style.left = isRight ? "" : `${scale.x(count) + 12}px`;
    this.tip.style.right = isRight ? `${this.#width - scale.x(count) + 12}px` : "";
    this.stage.setAttribute("aria-valuenow", index);
    this.stage.setAttribute("aria-valuetext", PLOT.pointed(count, rows.map(([curve, size]) => [curve.cache, size])));
  }

  #key(event) {
    if (!this.#view) return;
    const last = this.#view.curves[0].points.length - 1;
    const now = this.#index ?? this.#atPresent();
    const moves = { ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now - 1, ArrowDown: now - 1, Home: 0, End: last };
    if (event.key in moves) this.#point(Math.min(last, Math.max(0, moves[event.key])));
    else if (event.key === "Enter" || event.key === " ") this.#take(now, event);
    else if (event.key === "Escape") this.#point(null);
    else return;
    event.preventDefault();
  }

  #atPresent() {
    const away = this.#view.curves[0].points.map(([count]) => Math.abs(count - (this.#fit?.context_tokens ?? 0)));
    return away.indexOf(Math.min(...away));
  }

  #take(index, event) {
    if (index !== null && this.#view) this.#onpick(this.#view.curves[0].points[index][0], event);
  }

  /** Fills the table when it is opened. */
  #tabulate() {
    if (this.table.parentElement.open) this.table.replaceChildren(plotTable(this.#shown(), this.#memory));
  }
}
