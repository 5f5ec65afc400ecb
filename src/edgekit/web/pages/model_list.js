// The table of all models. Only the rows near the window are in the document.

import { verdict } from "./bar.js";
import { compareBox } from "./compared.js";
import { el, oncePerFrame } from "./dom.js";
import { decisiveBar, direction, pressed, speedOf } from "./filters.js";
import { figure, gb, gibOf, params, rateInterval, tokens, wholeK } from "./format.js";
import { HOME } from "./texts.js";

const EXTRA = 8; // rows kept above and below the window, so that Tab and short scrolls find them
const SKELETONS = 12;
const COLUMNS = ["name", "verdict", "speed", "download", "context", "memory"]; // not sortable: verdict
const SORTABLE = new Set(["name", "speed", "download", "context", "memory"]);

const skeleton = (className) => el("span", { class: `skeleton ${className}`, "aria-hidden": "true" });

const cell = (className, ...children) => el("div", { class: `cell cell-${className}`, role: "cell" }, ...children);

/** "≈ 42 tok/s"; a dash if the model does not run. */
function speedNodes(item) {
  const value = speedOf(item);
  if (value === null) return [HOME.noValue];
  const about = el("span", { class: "about", text: HOME.about("") });
  return [about, figure(value), " ", el("small", { class: "muted", text: HOME.perSecond })];
}

/** A small bar of the fullest memory, with a mark at the usable limit. */
function memoryNode(card) {
  const bar = decisiveBar(card);
  if (!bar) return HOME.noValue;
  const whole = Math.max(bar.total_bytes ?? 0, bar.available_bytes, bar.required_bytes);
  const used = el("span", { class: "part used" });
  const limit = el("span", { class: "mark limit" });
  used.style.width = `${(100 * bar.required_bytes) / whole}%`;
  limit.style.left = `${(100 * bar.available_bytes) / whole}%`;
  const words = HOME.memoryUsed(bar.memory, gibOf(bar.required_bytes, bar.available_bytes));
  return el(
    "div",
    { class: "track", role: "img", "aria-label": words, title: words },
    el("span", { class: "room" }),
    used,
    limit,
  );
}

/** The subtitle: publisher and size. */
function subtitleOf(model) {
  return [model.publisher, !/\d[BM]\b/i.test(model.title) && model.parameters && params(model.parameters)].filter(
    Boolean,
  ).join(" · ");
}

/** The row of one model: made once, filled in when its card comes. */
class Row {
  #cells;

  constructor(item, linkOf) {
    const { model } = item;
    const { label, box, show } = compareBox(model);
    this.link = el("a", { text: model.title, class: "row-link", href: linkOf(item) });
    this.box = box;
    this.showCompared = show;
    const subtitle = el("small", { class: "muted row-publisher", text: subtitleOf(model) });
    const name = el("div", { class: "cell cell-name", role: "rowheader" }, this.link, subtitle);
    this.#cells = Object.fromEntries(COLUMNS.slice(1).map((column) => [column, cell(column)]));
    this.node = el("div", { class: "model-row", role: "row", "data-id": model.id });
    this.node.append(cell("compare", label), name, ...Object.values(this.#cells));
    this.show(item, linkOf);
  }

  place(at, height) {
    this.node.style.top = `${at * height}px`;
    this.node.setAttribute("aria-rowindex", String(at + 2)); // row 1 is the header
  }

  show(item, linkOf) {
    const { card, isGivenUp } = item;
    this.link.href = linkOf(item);
    this.node.dataset.status = card?.status ?? "working";
    const { verdict: badge, speed, download, context, memory } = this.#cells;
    if (!card) {
      const empty = isGivenUp ? () => HOME.noValue : skeleton;
      for (const [column, node] of Object.entries(this.#cells)) node.replaceChildren(empty(`skeleton-${column}`));
      badge.append(el("span", { class: "offscreen", text: isGivenUp ? HOME.notChecked : HOME.checking }));
      return;
    }
    const short = verdict(card.status, card.engine, "");
    const long = verdict(card.status, card.engine, card.runs_on);
    short.classList.add("when-narrow");
    long.classList.add("when-wide");
    badge.replaceChildren(short, long);
    badge.title = card.headline;
    speed.replaceChildren(...speedNodes(item));
    speed.title = card.speed && !item.model.kinds.includes("embedding")
      ? HOME.interval(rateInterval(card.speed.decode))
      : "";
    download.replaceChildren(card.download_bytes ? gb(card.download_bytes) : HOME.noValue);
    context.replaceChildren(...(card.max_context ? contextNodes(card.max_context) : [HOME.noValue]));
    context.title = card.max_context ? HOME.tokens(tokens(card.max_context)) : "";
    memory.replaceChildren(memoryNode(card));
  }
}

/** "46K"; the word "context" is shown only where there are no column headings. */
const contextNodes = (count) => [wholeK(count), el("span", { class: "when-narrow", text: ` ${HOME.contextWord}` })];

/** A placeholder row, before the list is loaded. */
function emptyRow(at) {
  const cells = COLUMNS.map((column) => el("div", { class: `cell cell-${column}` }, skeleton(`skeleton-${column}`)));
  const node = el(
    "div",
    { class: "model-row", "aria-hidden": "true" },
    el("div", { class: "cell cell-compare" }),
    cells,
  );
  node.style.setProperty("--at", String(at));
  return node;
}

/** {node, show(items), update(item), showCompared(), showSort(sort)}; calls onsort(sort) for a click on a heading. */
export class ModelList {
  #items = [];
  #rows = new Map(); // model ID -> Row
  #heads = new Map(); // column -> its heading
  #body = el("div", { class: "model-rows", role: "rowgroup" });
  #ruler = el("div", { class: "row-ruler", "aria-hidden": "true" }); // to measure the height of a row
  #linkOf;
  #sort = "best";
  #height = 0;

  constructor({ linkOf, onsort, signal }) {
    this.#linkOf = linkOf;
    const head = el("div", { class: "model-head-row", role: "row", "aria-rowindex": "1" }, this.#headCells(onsort));
    this.node = el(
      "div",
      { class: "models", role: "table", "aria-label": HOME.models, "aria-busy": "true" },
      el("div", { class: "model-heads", role: "rowgroup" }, head),
      this.#ruler,
      this.#body,
    );
    const draw = oncePerFrame(() => !signal.aborted && this.#draw());
    addEventListener("scroll", () => this.#draw(), { signal, passive: true });
    addEventListener("resize", draw, { signal });
    const observer = new ResizeObserver(() => this.#measure() && draw());
    observer.observe(this.#ruler);
    signal.addEventListener("abort", () => observer.disconnect());
    this.#body.addEventListener("keydown", (event) => this.#key(event));
    this.#body.addEventListener("focusin", () => this.#draw()); // at once: the next key needs the next row
    this.showSort("best");
    this.#body.append(...Array.from({ length: SKELETONS }, (_, at) => emptyRow(at)));
    this.#body.style.height = `calc(var(--row-height) * ${SKELETONS})`;
  }

  #headCells(onsort) {
    const cells = COLUMNS.map((column) => {
      const text = HOME.columns[column];
      const press = () => onsort(pressed(this.#sort, column));
      const inside = SORTABLE.has(column)
        ? el("button", { type: "button", class: "head", text, onclick: press })
        : text;
      const node = el("div", { class: `cell cell-${column}`, role: "columnheader" }, inside);
      this.#heads.set(column, node);
      return node;
    });
    const compare = el("span", { class: "offscreen", text: HOME.compare });
    return [el("div", { class: "cell cell-compare", role: "columnheader" }, compare), ...cells];
  }

  /** Marks the sorted column. */
  showSort(sort) {
    this.#sort = sort;
    for (const [column, node] of this.#heads) {
      if (!SORTABLE.has(column)) continue;
      node.setAttribute("aria-sort", direction(sort, column) ?? "none");
    }
  }

  /** Shows these models in this order. */
  show(items) {
    this.#items = items;
    this.node.setAttribute("aria-rowcount", String(items.length + 1));
    this.node.setAttribute("aria-busy", "false");
    this.#measure();
    this.#body.style.height = `calc(var(--row-height) * ${items.length})`;
    const shown = new Set(items.map((item) => item.model.id));
    for (const [id, row] of this.#rows) if (!shown.has(id)) (row.node.remove(), this.#rows.delete(id));
    this.#draw();
  }

  /** Redraws the row of a model whose card has changed. */
  update(item) {
    this.#rows.get(item.model.id)?.show(item, this.#linkOf);
  }

  showCompared() {
    for (const row of this.#rows.values()) row.showCompared();
  }

  /** Drops all rows, so that show() makes new ones. */
  forget() {
    for (const row of this.#rows.values()) row.node.remove();
    this.#rows.clear();
  }

  /** Measures the height of a row. Returns whether it has changed. */
  #measure() {
    const before = this.#height;
    this.#height = this.#ruler.getBoundingClientRect().height;
    return this.#height !== before;
  }

  /** The indexes of the rows to draw: those near the window, and those next to the focus. */
  #wanted() {
    if (!this.#height) return new Set();
    const { top } = this.#body.getBoundingClientRect();
    const from = Math.floor(-top / this.#height) - EXTRA;
    const to = Math.ceil((innerHeight - top) / this.#height) + EXTRA;
    const wanted = new Set();
    const add = (low, high) => {
      for (let at = Math.max(0, low); at <= Math.min(this.#items.length - 1, high); at += 1) wanted.add(at);
    };
    add(from, to);
    const focused = document.activeElement?.closest?.(".model-row");
    const id = focused && this.#body.contains(focused) ? focused.dataset.id : null;
    const at = id ? this.#items.findIndex((item) => item.model.id === id) : -1;
    if (at >= 0) add(at - 1, at + 1);
    return wanted;
  }

  #draw() {
    if (this.node.getAttribute("aria-busy") === "true" || !this.node.isConnected) return;
    const places = [...this.#wanted()].sort((a, b) => a - b);
    const rows = places.map((at) => this.#rowAt(at));
    const nodes = new Set(rows.map((row) => row.node));
    for (const node of [...this.#body.children]) if (!nodes.has(node)) node.remove();
    rows.forEach(({ node }, at) => {
      if (this.#body.children[at] !== node) this.#body.insertBefore(node, this.#body.children[at] ?? null);
    });
  }

  #rowAt(at) {
    const item = this.#items[at];
    const { id } = item.model;
    if (!this.#rows.has(id)) this.#rows.set(id, new Row(item, this.#linkOf));
    const row = this.#rows.get(id);
    row.place(at, this.#height);
    return row;
  }

  /** Arrow keys move between the names. */
  #key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest(".model-row");
    if (!step || !row || event.target.tagName !== "A") return;
    const at = this.#items.findIndex((item) => item.model.id === row.dataset.id) + step;
    if (at < 0 || at >= this.#items.length) return;
    event.preventDefault();
    this.#rowAt(at).link.focus();
  }
}
