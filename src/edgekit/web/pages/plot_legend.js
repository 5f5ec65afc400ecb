// The plot's legend, which switches lines on and off, and its table.

import { el, svg } from "./dom.js";
import { bytes, tokens } from "./format.js";
import { COMMON, PLOT } from "./texts.js";

/** The legend; calls onwant(cache) for a line that is not loaded. */
export class PlotLegend {
  #hidden = new Set();
  #onwant;
  #onchange;

  constructor({ onwant, onchange }) {
    this.#onwant = onwant;
    this.#onchange = onchange;
    this.drawn = el("div", { class: "plot-legend", role: "group", "aria-label": PLOT.drawn });
    this.others = el("div", { class: "plot-legend" });
    this.refused = el("ul", { class: "notes small muted" });
    this.more = el(
      "details",
      { class: "unfold", hidden: true },
      el("summary", { text: PLOT.more }),
      this.others,
      el("div", { role: "status" }, this.refused),
    );
  }

  isShown(cache) {
    return !this.#hidden.has(cache);
  }

  /** rows: [{cache, colour, curves, refused: {why, isFinal} or undefined}]. */
  show(rows) {
    const focused = document.activeElement?.dataset?.cache;
    const entries = rows.map((row) => this.#entry(row));
    this.drawn.replaceChildren(...entries.filter((_, i) => rows[i].curves.length));
    this.others.replaceChildren(...entries.filter((_, i) => !rows[i].curves.length));
    this.refused.replaceChildren(
      ...rows.filter((row) => row.refused).map(({ cache, refused }) =>
        el("li", { text: PLOT.reason(cache, refused.why) })
      ),
    );
    this.more.hidden = !this.others.childElementCount;
    if (focused) entries.find((entry) => entry.dataset.cache === focused)?.focus();
  }

  #entry({ cache, colour, curves, refused }) {
    const swatch = svg(
      "svg",
      { width: 28, height: 10, "aria-hidden": "true" },
      svg("line", { class: `curve k${colour}`, x1: 1, y1: 5, x2: 27, y2: 5 }),
    );
    const isOn = curves.length > 0 && this.isShown(cache);
    const isFinal = Boolean(refused?.isFinal); // else another request may succeed
    const word = refused ? (isFinal ? PLOT.refused : PLOT.failedWord) : longest(curves);
    const props = {
      type: "button",
      class: "entry",
      "data-cache": cache,
      "aria-pressed": String(isOn),
      "aria-disabled": isFinal ? "true" : null,
      title: refused?.why ?? PLOT.toggle,
    };
    const entry = el("button", props, swatch, el("span", { text: cache }), el("small", { text: word }));
    if (curves.length) entry.dataset.there = "";
    if (!isFinal) entry.addEventListener("click", () => this.#toggle(cache, curves.length > 0, entry));
    return entry;
  }

  #toggle(cache, isThere, entry) {
    if (!isThere) {
      this.#hidden.delete(cache);
      this.#onwant(cache);
      return;
    }
    if (!this.#hidden.delete(cache)) this.#hidden.add(cache);
    entry.setAttribute("aria-pressed", String(this.isShown(cache)));
    this.#onchange();
  }
}

/** The largest context of a cache type that fits in every memory. */
function longest(curves) {
  if (!curves.length) return "";
  const count = Math.min(...curves.map((curve) => curve.longest ?? 0));
  return count > 0 ? PLOT.upTo(count) : PLOT.doesNotFit;
}

/** The table: a row per context, a column per cache type. */
export function plotTable(curves, memory) {
  const heads = [PLOT.context, ...curves.map((curve) => curve.cache)].map((text) =>
    el("th", { scope: "col", class: "number", text })
  );
  const rows = (curves[0]?.points ?? []).map(([count], i) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", class: "number", text: tokens(count) }),
      ...curves.map((curve) => cell(curve.points[i])),
    )
  );
  return el(
    "table",
    {},
    el("caption", { text: PLOT.caption(memory) }),
    el("thead", {}, el("tr", {}, ...heads)),
    el("tbody", {}, ...rows),
  );
}

function cell(point) {
  return el("td", { class: "number", text: point ? bytes(point[1]) : "", title: point ? COMMON.bytes(point[1]) : "" });
}
