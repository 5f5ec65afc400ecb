// The layers of a model as a strip: colour and height show the kind, the band below where each layer is.

import { el, svg } from "./dom.js";
import { LAYERS } from "./texts.js";

const KINDS = 6; // colours and heights in model.css
const TALL = [22, 15, 19, 11, 17, 13]; // of kind 0, 1, ...
const TOP = 24;
const BAND = 6;
const HEIGHT = TOP + 4 + BAND;

/** The kinds of layers, the most frequent first. */
function kindsOf(layers) {
  const counts = new Map();
  for (const { kind } of layers) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([kind, count], i) => ({ kind, count, place: i % KINDS }));
}

/** The class of a layer's band: on a GPU, on the CPU, or on both. */
function bandOf(pools) {
  const isGpu = pools.some((pool) => pool.startsWith("device"));
  const isHost = pools.includes("host");
  if (isGpu && isHost) return "both";
  return isGpu ? "gpu" : "cpu";
}

export class Strip {
  #layers = [];
  #drawn = "";
  #index = null;
  #nameOf = (pool) => pool;

  constructor() {
    this.svg = svg("svg", { class: "strip", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.legend = el("ul", { class: "legend strip-legend" });
    this.told = el("p", { class: "muted small strip-told", text: LAYERS.hint });
    this.stage = el("div", {
      class: "strip-stage",
      tabIndex: 0,
      role: "slider",
      "aria-label": LAYERS.label,
      "aria-valuemin": 0,
      "aria-valuemax": 0,
      "aria-valuenow": 0,
    }, this.svg);
    this.node = el("div", {}, this.stage, this.told, this.legend);
    this.stage.addEventListener("pointermove", (event) => this.#point(this.#at(event)));
    this.stage.addEventListener("pointerleave", () => this.#point(null));
    this.stage.addEventListener("keydown", (event) => this.#key(event));
    this.stage.addEventListener("blur", () => this.#point(null));
  }

  show(layers, nameOf) {
    this.#layers = layers;
    this.#nameOf = nameOf;
    const wanted = layers.map((layer) => layer.kind + bandOf(layer.pools)).join();
    if (wanted !== this.#drawn) this.#draw();
    this.#drawn = wanted;
    if (this.#index !== null) this.#point(this.#index);
  }

  #draw() {
    const kinds = kindsOf(this.#layers);
    const placeOf = new Map(kinds.map(({ kind, place }) => [kind, place]));
    const count = Math.max(1, this.#layers.length);
    this.svg.setAttribute("viewBox", `0 0 ${count} ${HEIGHT}`);
    const gap = count > 100 ? 0.1 : 0.16;
    this.svg.replaceChildren(...this.#layers.map((layer, i) => column(layer, i, placeOf.get(layer.kind), gap)));
    this.stage.setAttribute("aria-valuemax", count - 1);
    const bands = [...new Set(this.#layers.map((layer) => bandOf(layer.pools)))];
    this.legend.replaceChildren(...kinds.map(kindEntry), ...bands.map((band) => bandEntry(band, this.#layers)));
  }

  #at(event) {
    const { left, width } = this.svg.getBoundingClientRect();
    const index = Math.floor(((event.clientX - left) / width) * this.#layers.length);
    return Math.min(this.#layers.length - 1, Math.max(0, index));
  }

  #key(event) {
    const last = this.#layers.length - 1;
    const now = this.#index ?? -1;
    const moves = {
      ArrowRight: now + 1,
      ArrowUp: now + 1,
      ArrowLeft: now - 1,
      ArrowDown: now - 1,
      PageUp: now + 10,
      PageDown: now - 10,
      Home: 0,
      End: last,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.#point(Math.min(last, Math.max(0, moves[event.key])));
  }

  #point(index) {
    this.svg.querySelector(".now")?.classList.remove("now");
    this.#index = index;
    const layer = this.#layers[index];
    if (!layer) {
      this.told.textContent = LAYERS.hint;
      return;
    }
    this.svg.children[index].classList.add("now");
    this.told.textContent = LAYERS.layer({
      ...layer,
      index: layer.layer,
      count: this.#layers.length,
      memories: layer.pools.map(this.#nameOf),
    });
    this.stage.setAttribute("aria-valuenow", index);
    this.stage.setAttribute("aria-valuetext", this.told.textContent);
  }
}

function column(layer, i, place, gap) {
  const tall = TALL[place];
  return svg(
    "g",
    { class: `layer kind${place}` },
    svg("rect", { class: "ground", x: i, y: 0, width: 1, height: HEIGHT }),
    svg("rect", { class: "body", x: i + gap / 2, y: TOP - tall, width: 1 - gap, height: tall }),
    svg("rect", { class: `band ${bandOf(layer.pools)}`, x: i + gap / 2, y: TOP + 4, width: 1 - gap, height: BAND }),
  );
}

function kindEntry({ kind, count, place }) {
  const picture = svg(
    "svg",
    { width: 12, height: 22, "aria-hidden": "true", class: `kind${place}` },
    svg("rect", { class: "body", x: 1, y: 22 - TALL[place], width: 10, height: TALL[place] }),
  );
  return el("li", {}, picture, LAYERS.entry(count, kind));
}

function bandEntry(band, layers) {
  const count = layers.filter((layer) => bandOf(layer.pools) === band).length;
  const picture = svg(
    "svg",
    { width: 18, height: 8, "aria-hidden": "true" },
    svg("rect", { class: `band ${band}`, x: 0.5, y: 0.5, width: 17, height: 7 }),
  );
  return el("li", {}, picture, LAYERS.entry(count, LAYERS.bands[band]));
}
