// "What would a bigger card give me?": how many models run fully on the GPU at each size of its memory, as a picture.

import { call, isPassing } from "./api.js";
import { announce, el, fault, scrollTable, svg } from "./dom.js";
import { params, tokens } from "./format.js";
import { machine } from "./machine.js";
import { HARDWARE } from "./texts.js";

const TEXTS = HARDWARE.upgrades;
const HEIGHT = 300; // of the picture, px
const MARGIN = { top: 44, right: 8, bottom: 46, left: 40 };
const GAP = 0.22; // share of the width per bar
const NARROW = 30; // px per bar; below, every other label is left out
const USUAL_STEP = 16 * 1024 ** 3; // selected first on a machine without a GPU
const MOVES = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 };
const TICKS = [1, 2, 5, 10, 20, 25, 50, 100, 200, 500];

/** Grid lines: three or four, at round numbers. */
function ticks(most) {
  const step = TICKS.find((one) => most / one <= 4.5) ?? most;
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, at) => at * step);
}

/** The step selected first: the next size above the machine's that runs more models. */
function firstChosen(steps, now) {
  if (now < 0) return Math.max(0, steps.findIndex((step) => step.vram_bytes >= USUAL_STEP));
  const better = steps.findIndex((step, at) => at > now && step.count > steps[now].count);
  return better < 0 ? now : better;
}

const place = (node, name, value) => node.setAttribute(name, value.toFixed(1));

/** The panel. It stops when the signal aborts. */
export class Upgrades {
  #signal;
  #request = new AbortController();
  #answer = null;
  #chosen = 0;
  #task = "chat";
  #sentence = el("p", { class: "upgrade-sentence" });
  #stage = el("div", { class: "upgrade-stage" });
  #tip = el("div", { class: "upgrade-tip", "aria-hidden": "true", hidden: true });
  #gained = el("div", { class: "upgrade-gained" });
  #table = el("details", { class: "unfold" });
  #note = el("p", { class: "small muted upgrade-note", text: TEXTS.footnote });
  #groups = [];
  #width = 0;

  constructor(signal) {
    this.#signal = signal;
    const tasks = el(
      "select",
      { id: "upgrade-task", onchange: () => ((this.#task = tasks.value), this.ask()) },
      Object.entries(TEXTS.tasks).map(([value, text]) => el("option", { value, text })),
    );
    this.node = el(
      "section",
      { class: "panel upgrades", "aria-labelledby": "upgrades" },
      el(
        "div",
        { class: "row spread upgrade-head" },
        el("h2", { id: "upgrades", text: TEXTS.title }),
        el("div", { class: "row" }, el("label", { class: "small muted", htmlFor: tasks.id, text: TEXTS.task }), tasks),
      ),
      this.#sentence,
      el("div", { class: "upgrade-frame" }, this.#stage, this.#tip),
      this.#gained,
      this.#table,
      this.#note,
    );
    this.#wait();
    const watch = new ResizeObserver(() => this.#draw());
    watch.observe(this.#stage);
    signal.addEventListener("abort", () => watch.disconnect());
  }

  /** Until ask(): what is shown is of another machine. */
  wait() {
    this.#request.abort();
    this.node.hidden = false;
    this.node.setAttribute("aria-busy", "true");
  }

  /** There is no machine to ask about. */
  skip() {
    this.node.hidden = true;
  }

  #wait() {
    this.#sentence.replaceChildren(el("span", { class: "muted", role: "status", text: TEXTS.counting }));
  }

  async ask() {
    this.#request.abort();
    this.#request = new AbortController();
    const signal = AbortSignal.any([this.#request.signal, this.#signal]);
    this.node.hidden = false;
    this.node.setAttribute("aria-busy", "true");
    try {
      const { device, ram, vram, cpu } = machine;
      const answer = await call("upgrades", { task: this.#task, device, ram, vram, cpu }, { signal });
      if (signal.aborted) return;
      this.#answer = answer;
      this.#chosen = firstChosen(answer.steps, this.#now);
      this.#note.textContent = [TEXTS.footnote, ...answer.notes.map((note) => `${note}.`)].join(" ");
      this.#width = 0; // draw again
      this.#draw();
      this.#show();
    } catch (error) {
      if (!signal.aborted) this.#fail(error);
    }
    this.node.removeAttribute("aria-busy");
  }

  #fail(error) {
    this.#answer = null;
    this.#stage.replaceChildren();
    this.#gained.replaceChildren();
    this.#table.replaceChildren();
    const nodes = isPassing(error) ? fault(error.message, () => this.ask()) : [el("p", { text: error.message })];
    this.#sentence.replaceChildren(el("span", { class: "error", role: "alert" }, ...nodes));
  }

  get #now() {
    return this.#answer.steps.findIndex((step) => step.is_now);
  }

  /** How many more models than the machine runs now; all of them for a machine without a GPU. */
  #more(step) {
    return step.count - (this.#answer.steps[this.#now]?.count ?? 0);
  }

  /** Draws the picture at the available width. */
  #draw() {
    const width = this.#stage.clientWidth;
    if (!this.#answer || !width || width === this.#width) return;
    this.#width = width;
    const { steps, models } = this.#answer;
    const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
    const band = inner.width / steps.length;
    const top = Math.max(1, ...steps.map((step) => step.count));
    const y = (count) => MARGIN.top + inner.height * (1 - count / top);
    const hadFocus = this.#stage.contains(document.activeElement);
    this.#groups = steps.map((step, at) => this.#bar(step, at, MARGIN.left + band * at, band, y));
    this.#stage.replaceChildren(
      svg(
        "svg",
        {
          width,
          height: HEIGHT,
          viewBox: `0 0 ${width} ${HEIGHT}`,
          role: "radiogroup",
          "aria-label": `${TEXTS.picture}. ${TEXTS.keys}`,
        },
        ticks(top).map((count) => gridLine(count, width, y(count))),
        svg("text", { class: "upgrade-axis", x: 0, y: 12, text: TEXTS.axisY }),
        svg("text", {
          class: "upgrade-axis",
          x: width - MARGIN.right,
          y: HEIGHT - 4,
          "text-anchor": "end",
          text: TEXTS.axis,
        }),
        this.#groups,
        this.#marker(band, y),
      ),
    );
    this.#mark();
    if (hadFocus) this.#groups[this.#chosen].focus({ preventScroll: true });
    this.#stage.dataset.models = models;
  }

  /** The bar of one size: models that run now at the bottom, gained ones above. */
  #bar(step, at, left, band, y) {
    const now = this.#answer.steps[this.#now];
    const kept = Math.min(step.count, now?.count ?? 0);
    const [x, width] = [left + (band * GAP) / 2, band * (1 - GAP)];
    const rect = (className, from, to) => {
      const node = svg("rect", { class: className, rx: 3 });
      for (const [name, value] of Object.entries({ x, width, y: y(to), height: y(from) - y(to) })) {
        place(node, name, Math.max(0, value));
      }
      return node;
    };
    const isLabelled = band >= NARROW || at % 2 === Math.max(0, this.#now) % 2;
    const middle = left + band / 2;
    const group = svg(
      "g",
      {
        class: step.is_now ? "upgrade-step now" : "upgrade-step",
        role: "radio",
        "aria-label": TEXTS.step({
          size: step.label,
          count: step.count,
          models: this.#answer.models,
          gained: now ? this.#more(step) : 0,
          devices: step.devices,
          isNow: step.is_now,
        }),
      },
      svg("rect", { class: "upgrade-hit", x: left, y: MARGIN.top - 20, width: band, height: HEIGHT - MARGIN.top - 4 }),
      kept > 0 && rect("upgrade-kept", 0, kept),
      step.count > kept && rect("upgrade-more", kept, step.count),
      band >= NARROW &&
        svg("text", { class: "upgrade-count", x: middle, y: y(step.count) - 6, text: tokens(step.count) }),
      isLabelled &&
        svg("text", {
          class: "upgrade-size",
          x: middle,
          y: HEIGHT - MARGIN.bottom + 18,
          text: step.label.replace(/\s*GB$/, ""),
        }),
    );
    group.addEventListener("click", () => this.#choose(at));
    group.addEventListener("pointerenter", () => this.#showTip(at));
    group.addEventListener("pointerleave", () => (this.#tip.hidden = true));
    group.addEventListener("focus", () => this.#showTip(at));
    group.addEventListener("blur", () => (this.#tip.hidden = true));
    group.addEventListener("keydown", (event) => this.#key(event));
    return group;
  }

  /** The "you are here" mark. */
  #marker(band, y) {
    const at = this.#now;
    if (at < 0) return null;
    const x = MARGIN.left + band * (at + 0.5);
    const above = y(this.#answer.steps[at].count) - (band >= NARROW ? 22 : 8);
    const anchor = x < 60 ? "start" : x > this.#width - 60 ? "end" : "middle";
    return svg(
      "g",
      { class: "upgrade-here", "aria-hidden": "true" },
      svg("path", { d: `M${x - 5} ${above - 7}h10l-5 6z` }),
      svg("text", {
        x: anchor === "middle" ? x : x + (anchor === "start" ? -5 : 5),
        y: above - 12,
        "text-anchor": anchor,
        text: TEXTS.here,
      }),
    );
  }

  #key(event) {
    const last = this.#groups.length - 1;
    const ends = { Home: 0, End: last };
    const next = event.key in ends ? ends[event.key] : this.#chosen + (MOVES[event.key] ?? NaN);
    if (Number.isNaN(next)) return;
    event.preventDefault();
    this.#choose(Math.max(0, Math.min(last, next)));
    this.#groups[this.#chosen].focus({ preventScroll: true });
  }

  #choose(at) {
    this.#chosen = at;
    this.#mark();
    this.#show();
    announce(this.#sentence.textContent);
  }

  #mark() {
    this.#groups.forEach((group, at) => {
      group.setAttribute("aria-checked", String(at === this.#chosen));
      group.setAttribute("tabindex", at === this.#chosen ? "0" : "-1");
    });
  }

  #showTip(at) {
    const step = this.#answer.steps[at];
    const more = this.#more(step);
    this.#tip.replaceChildren(
      el("strong", { text: step.label }),
      el("span", { text: TEXTS.tip(step.count, this.#answer.models) }),
      step.is_now
        ? el("span", { text: TEXTS.here })
        : el("span", { class: "gain", text: this.#now < 0 ? "" : TEXTS.tipMore(more) }),
      el("small", { text: step.devices.join(", ") }),
    );
    this.#tip.hidden = false;
    const middle = MARGIN.left + ((this.#width - MARGIN.left - MARGIN.right) / this.#groups.length) * (at + 0.5);
    const half = this.#tip.offsetWidth / 2;
    this.#tip.style.left = `${Math.max(0, Math.min(this.#width - 2 * half, middle - half))}px`;
  }

  /** The sentence for the chosen size, and the models that it adds. */
  #show() {
    const { steps, models } = this.#answer;
    const step = steps[this.#chosen];
    const now = steps[this.#now];
    const facts = {
      size: step.label,
      count: step.count,
      models,
      gained: this.#more(step),
      task: TEXTS.tasks[this.#task],
    };
    const sentence = !now
      ? TEXTS.sentenceFirst
      : step.is_now
      ? TEXTS.sentenceNow
      : facts.gained < 0
      ? TEXTS.sentenceLess
      : TEXTS.sentence;
    this.#sentence.textContent = sentence(facts);
    this.#gained.replaceChildren(this.#models(step), this.#devices(step));
    this.#fillTable();
  }

  #models(step) {
    const rows = step.gained.map((model) => {
      const query = new URLSearchParams({ ref: model.id });
      if (step.devices.length) query.append("device", step.devices[0]);
      if (machine.ram) query.append("ram", machine.ram);
      const link = el("a", { href: `/model?${query}`, text: model.title ?? model.id });
      return el("li", {}, link, el("small", { text: [params(model.parameters), TEXTS.on(step.devices[0])].join(" ") }));
    });
    return el(
      "div",
      {},
      el("h3", { text: TEXTS.gained(step.label) }),
      rows.length ? el("ul", { class: "upgrade-models" }, rows) : el("p", { class: "muted", text: TEXTS.gainedNone }),
    );
  }

  #devices(step) {
    const choose = (name) => machine.set({ device: [name], ram: machine.ram, cpu: machine.cpu });
    const buttons = step.devices.map((name) =>
      el("button", { type: "button", class: "small", text: TEXTS.tryDevice(name), onclick: () => choose(name) })
    );
    return el("div", {}, el("h3", { text: TEXTS.devices }), el("div", { class: "buttons" }, buttons));
  }

  #fillTable() {
    const number = (text) => el("td", { class: "number", text });
    const rows = this.#answer.steps.map((step) =>
      el(
        "tr",
        {},
        el("th", { scope: "row", text: step.is_now ? `${step.label} (${TEXTS.here})` : step.label }),
        number(tokens(step.count)),
        number(this.#now < 0 ? HARDWARE.unknown : String(this.#more(step))),
        el("td", { text: step.devices.join(", ") }),
      )
    );
    const columns = TEXTS.columns.map((text, at) => (at === 1 || at === 2 ? { text, class: "number" } : text));
    const { open } = this.#table;
    this.#table.replaceChildren(
      el("summary", { text: TEXTS.table }),
      scrollTable(TEXTS.picture, "upgrade-table", columns, el("tbody", {}, rows)),
    );
    this.#table.open = open;
  }
}

function gridLine(count, width, y) {
  return svg(
    "g",
    { class: "upgrade-grid", "aria-hidden": "true" },
    svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
    svg("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end", text: tokens(count) }),
  );
}
