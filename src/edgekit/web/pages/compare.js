// The compare page: up to six models, machines, quantisations or engines in one table.

import { legend } from "./bar.js";
import { changeColumn, isSame } from "./compare_change.js";
import {
  Asker,
  canRetry,
  choicesOf,
  columnsOf,
  engineOf,
  isAsking,
  isRefused,
  machineOf,
  machineTitle,
  makeColumn,
  MOST_COLUMNS,
  quantsOf,
  queryOf,
  statusOf,
  titleOf,
} from "./compare_columns.js";
import { bestOf, cutAt, openLink, ROWS, scalesOf, setupWords, shownVerdict } from "./compare_rows.js";
import { announce, copy, el, scrollRoom } from "./dom.js";
import { COMPARED, engineLabel, verdictWord } from "./engines.js";
import { finder } from "./finder.js";
import { machine, machinePicker } from "./machine.js";
import { replaceQuery, route } from "./router.js";
import { COMMON, COMPARE, OPENING } from "./texts.js";

const USUAL_QUANTS = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M"];
const USUAL_RAM = "64G"; // next to a card, where the page's machine does not say
const USUAL_MACHINES = new Map([
  ["RTX 3060", USUAL_RAM],
  ["RTX 4090", USUAL_RAM],
  ["RTX 5090", USUAL_RAM],
  ["M4 Max 64GB", ""],
]);
const SKELETON = { memory: 2, command: 3 }; // lines that a value will take, where it is more than one
const ENDING = /:([\w.-]+)$/; // a quantisation at the end of a name

const on = (device, ram = USUAL_MACHINES.get(device)) => ({ device: [device], ram, vram: "", cpu: "" });
const EXAMPLES = {
  models: [{ ref: "gemma-3-27b" }, { ref: "qwen3-32b" }],
  quants: ["Q4_K_M", "Q8_0"].map((quant) => ({ ref: "qwen3-14b", quant })),
  machines: ["RTX 3060", "RTX 4090"].map((name) => ({ ref: "gemma-3-27b", on: on(name) })),
  engines: COMPARED.slice(0, 2).map((engine) => ({ ref: "qwen3-8b", engine, on: on("RTX 4090") })),
};

route("/compare", { title: COMPARE.title, render });

function render(root, query, { signal }) {
  new Comparison(root, query, signal).start();
}

/** What differs between the columns, for the buttons. */
function kindOf(columns) {
  const isOne = (value) => new Set(columns.map(value)).size < 2;
  if (columns.length < 2 || !isOne(({ ref }) => ref)) return "models";
  if (!isOne((column) => JSON.stringify(machineOf(column)))) return "machines";
  if (!isOne(({ engine }) => engine)) return "engines";
  return isOne(({ quant }) => quant) ? "models" : "quants";
}

/** The name of a model without a quantisation that it ends with. */
function plainRef({ ref }, quants) {
  const ending = ENDING.exec(ref)?.[1].toUpperCase();
  return quants.some((name) => name.toUpperCase() === ending) ? ref.slice(0, ref.lastIndexOf(":")) : ref;
}

/** Columns of each kind, made from the first column that is there. */
const FILLINGS = {
  machines(first) {
    const { ref, quant, engine } = first;
    const own = machineOf(first).device.join();
    const others = [...USUAL_MACHINES].filter(([name]) => name !== own);
    const machines = others.map(([name, ram]) => on(name, ram && (machine.ram || ram)));
    return [{ ref, quant, engine }, ...machines.map((other) => ({ ref, quant, engine, on: other }))];
  },
  quants(first) {
    const { engine, on: own } = first;
    const all = quantsOf(engineOf(first));
    const usual = USUAL_QUANTS.filter((name) => all.includes(name));
    const chosen = usual.length ? usual : all.slice(1, 1 + USUAL_QUANTS.length); // the first is the unquantised one
    return chosen.map((quant) => ({ ref: plainRef(first, all), quant, engine, on: own }));
  },
  engines: ({ ref, on: own }) => COMPARED.map((engine) => ({ ref, engine, on: own })),
};

class Comparison {
  #root;
  #signal;
  #columns;
  #context;
  #asker;
  #models = []; // the choices of the columns when models were compared last
  #place = el("div", { class: "compare-place" });
  #legend = el("div", { class: "compare-legend" });
  #kinds;
  #adder;
  #cells = new Map(); // row and column -> its node
  #shown = new WeakMap(); // node -> what was put into it

  constructor(root, query, signal) {
    this.#root = root;
    this.#signal = signal;
    this.#columns = columnsOf(query);
    this.#context = query.get("context")?.trim() ?? "";
    this.#asker = new Asker(signal, (column, isAnswer) => this.#hear(column, isAnswer));
  }

  start() {
    this.#root.append(
      el("h1", { text: COMPARE.title }),
      el("p", { class: "lead", text: COMPARE.lead }),
      this.#tools(),
      this.#place,
      this.#legend,
    );
    machine.addEventListener("change", () => this.#askAll(), { signal: this.#signal });
    this.#redraw();
    this.#askAll();
  }

  #tools() {
    this.#adder = finder({
      label: COMPARE.add,
      placeholder: COMPARE.addExample,
      signal: this.#signal,
      onpick: (ref) => {
        this.#adder.input.value = "";
        this.#add(ref);
      },
    });
    const names = Object.entries(COMPARE.kinds);
    this.#kinds = new Map(
      names.map((
        [kind, text],
      ) => [kind, el("button", { type: "button", class: "chip", text, onclick: () => this.#fillWith(kind) })]),
    );
    this.#toolbar = el(
      "div",
      { class: "compare-tools panel" },
      el("div", { class: "chips", role: "group", "aria-label": COMPARE.kindsLabel }, ...this.#kinds.values()),
      el("div", { class: "compare-add" }, this.#adder.node),
      el("div", { class: "compare-machine-line" }, machinePicker(this.#signal)),
      this.#contextField(),
      el("button", {
        type: "button",
        class: "quiet",
        text: COMMON.copyLink,
        onclick: (event) => copy(location.href, event.currentTarget),
      }),
    );
    return this.#toolbar;
  }

  #toolbar;

  #contextField() {
    const list = el("datalist", { id: "compare-contexts" }, COMPARE.contexts.map((value) => el("option", { value })));
    const input = el("input", {
      id: "compare-context",
      type: "text",
      value: this.#context,
      placeholder: COMPARE.contextDefault,
      title: COMPARE.contextHint,
      autocomplete: "off",
      maxLength: 20,
      size: 8,
    });
    input.setAttribute("list", list.id);
    const ask = () => {
      const typed = input.value.trim();
      const context = typed.toLowerCase() === COMPARE.contextDefault ? "" : typed;
      if (context === this.#context) return;
      this.#context = context;
      this.#askAll();
    };
    input.addEventListener("change", ask);
    const form = el(
      "form",
      { class: "compare-context" },
      el("label", { htmlFor: input.id, text: COMPARE.context }),
      input,
      list,
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      ask();
    });
    return form;
  }

  #keep() {
    replaceQuery(queryOf(this.#columns, this.#context));
  }

  #askAll() {
    this.#keep();
    for (const column of this.#columns) this.#asker.ask(column, this.#context);
  }

  /** Other columns: those that were there and are the same keep their answers. */
  #setColumns(rows) {
    const kept = [...this.#columns];
    const isHere = (row) => kept.find((column) => isSame(column, { quant: "", engine: "", on: null, ...row }));
    const next = rows.slice(0, MOST_COLUMNS).map((row) => {
      const column = isHere(row);
      if (column) kept.splice(kept.indexOf(column), 1);
      return column ?? makeColumn(row);
    });
    for (const column of kept) this.#asker.drop(column);
    const isNew = next.filter((column) => !this.#columns.includes(column));
    this.#columns = next;
    this.#keep();
    this.#redraw();
    for (const column of isNew) this.#asker.ask(column, this.#context);
  }

  #add(ref) {
    const last = this.#columns.at(-1);
    const engine = last?.engine ?? "";
    this.#setColumns([...this.#columns, { ref, engine, on: last?.on ?? null }]);
    if (this.#columns.length === MOST_COLUMNS) this.#headButton(this.#columns.at(-1))?.focus();
  }

  #remove(column) {
    const at = this.#columns.indexOf(column);
    const name = titleOf(column);
    this.#setColumns(this.#columns.filter((one) => one !== column));
    announce(COMPARE.removed(name));
    const next = this.#columns[Math.min(at, this.#columns.length - 1)];
    (next ? this.#headButton(next) : this.#place.querySelector("input"))?.focus();
  }

  #change(column, choices) {
    if (isSame(column, choices)) return;
    Object.assign(column, choices);
    this.#keep();
    this.#asker.ask(column, this.#context);
    this.#showKinds();
  }

  /** Fills the columns from the first one; back at models, those that were compared before are there again. */
  #fillWith(kind) {
    const first = this.#columns[0];
    const current = kindOf(this.#columns);
    if (current === "models" && this.#columns.length > 1) this.#models = this.#columns.map(choicesOf);
    if (kind !== "models") this.#setColumns(FILLINGS[kind](first));
    else if (current !== "models") {
      const { ref, engine, on: own } = first;
      this.#setColumns(this.#models.length ? this.#models : [{ ref, engine, on: own }]);
    }
    if (kind === "models" && this.#columns.length < 2) {
      this.#adder.input.focus();
      announce(COMPARE.addSecond);
      return;
    }
    announce(COMPARE.filled(COMPARE.kinds[kind], this.#columns.length));
  }

  #showKinds() {
    const first = this.#columns[0];
    const current = kindOf(this.#columns);
    for (const [kind, button] of this.#kinds) {
      button.setAttribute("aria-pressed", String(kind === current));
      const hint = COMPARE.kindsHint[kind];
      const isBare = kind === "quants" && first && !quantsOf(engineOf(first)).length;
      button.disabled = isBare;
      button.title = isBare ? COMPARE.noQuants : typeof hint === "string" ? hint : hint(first ? titleOf(first) : "");
    }
    const isFull = this.#columns.length >= MOST_COLUMNS;
    this.#adder.input.disabled = isFull;
    this.#adder.input.placeholder = isFull ? COMPARE.full(MOST_COLUMNS) : COMPARE.addExample;
  }

  #hear(column, isAnswer) {
    if (!this.#columns.includes(column)) return;
    this.#show();
    if (!isAnswer) return;
    const status = statusOf(column);
    const word = status ? verdictWord(status, engineOf(column)) : column.error.message;
    announce(COMPARE.result(titleOf(column), word));
  }

  /** The table, or what to begin with where there is no column. */
  #redraw() {
    this.#toolbar.hidden = !this.#columns.length;
    if (!this.#columns.length) {
      this.#cells.clear();
      this.#body = null;
      this.#place.replaceChildren(this.#emptyState());
      this.#legend.replaceChildren();
      return;
    }
    if (!this.#body) this.#drawTable();
    this.#show();
  }

  #body = null;
  #head = null;
  #table = null;

  #drawTable() {
    const corner = el(
      "th",
      { role: "columnheader", scope: "col", class: "compare-corner" },
      el("span", { class: "offscreen", text: COMPARE.region }),
    );
    this.#head = { row: el("tr", { role: "row" }), first: corner };
    this.#body = ROWS.map((row) => {
      const label = el(
        "th",
        { role: "rowheader", scope: "row" },
        row.label,
        row.hint && el("small", { text: row.hint }),
      );
      return { row: el("tr", { role: "row", class: `compare-row-${row.name}` }), first: label };
    });
    this.#table = el(
      "table",
      { class: "compare-table", role: "table" },
      el("caption", { class: "offscreen", text: COMPARE.caption }),
      el("thead", { role: "rowgroup" }, this.#head.row),
      el("tbody", { role: "rowgroup" }, this.#body.map(({ row }) => row)),
    );
    this.#place.replaceChildren(scrollRoom(COMPARE.region, this.#table));
  }

  #cell(name, column, make) {
    const key = `${name}/${column.id}`;
    if (!this.#cells.has(key)) this.#cells.set(key, make());
    return this.#cells.get(key);
  }

  /** Draws what has changed; who is in a cell stays there. */
  #show() {
    if (!this.#body) return;
    const held = document.activeElement;
    const columns = this.#columns;
    this.#table.style.setProperty("--columns", columns.length);
    this.#table.dataset.columns = columns.length;
    arrange(this.#head, columns.map((column) => this.#headCell(column)));
    const scales = scalesOf(columns);
    ROWS.forEach((row, index) => this.#showRow(row, this.#body[index], scales));
    this.#showLegend(scales);
    this.#showKinds();
    if (held !== document.activeElement && held?.isConnected && this.#table.contains(held)) {
      held.focus({ preventScroll: true });
    }
  }

  #showRow(row, place, scales) {
    const columns = this.#columns;
    const best = bestOf(row, columns);
    const isFirst = row === ROWS[0];
    const cells = columns.map((column) => {
      const cell = this.#cell(row.name, column, () => el("td", { role: "cell" }));
      const isBest = best.has(column);
      cell.classList.toggle("compare-best", isBest);
      cell.classList.toggle("compare-failed", isFirst && isFault(column));
      cell.rowSpan = isFirst && isFault(column) ? ROWS.length : 1;
      this.#fill(cell, this.#contentOf(row, column, scales, isBest), column);
      return isFirst || !isFault(column) ? cell : null;
    });
    arrange(place, cells);
  }

  #contentOf(row, column, scales, isBest) {
    const isFirst = row === ROWS[0];
    if (isFirst && isFault(column)) return this.#faultNodes(column);
    if (isFirst && isAsking(column)) return this.#waitNodes(column);
    if (isAsking(column)) return [skeleton(SKELETON[row.name] ?? 1)];
    const shown = [row.show(column, scales)].flat().filter((one) =>
      one !== null && one !== undefined && one !== false && one !== ""
    );
    if (!shown.length) return [el("span", { class: "muted", text: COMPARE.unknown })];
    return isBest ? [...shown, el("span", { class: "offscreen", text: `, ${COMPARE.best}` })] : shown;
  }

  /** Only what is new: a button that is held, or that says "Copied", stays. */
  #fill(cell, nodes, column) {
    const now = nodes.map((node) => node.outerHTML ?? node).join("");
    if (this.#shown.get(cell) === now) return;
    const isInside = cell.contains(document.activeElement);
    this.#shown.set(cell, now);
    cell.replaceChildren(...nodes);
    if (isInside) (cell.querySelector("button") ?? this.#headButton(column))?.focus({ preventScroll: true });
  }

  #waitNodes(column) {
    return [
      el("p", { class: "compare-told muted", role: "status", text: column.progress }),
      el("button", { type: "button", class: "small", text: COMMON.cancel, onclick: () => this.#asker.cancel(column) }),
    ];
  }

  /** What went wrong in this column, and what to do next. */
  #faultNodes(column) {
    const { error } = column;
    const again = el("button", {
      type: "button",
      class: "small",
      text: COMMON.tryAgain,
      onclick: () => this.#asker.ask(column, this.#context),
    });
    if (isRefused(column)) return shownVerdict(column);
    const help = OPENING.help[error.type];
    return [
      el("div", { class: "error", role: "alert" }, el("p", { text: error.message })),
      help && el("p", { class: "small muted", text: help }),
      canRetry(column) && again,
    ].filter(Boolean);
  }

  #headCell(column) {
    const cell = this.#cell("head", column, () => this.#makeHead(column));
    const title = el("h2", { text: titleOf(column) });
    const link = openLink(column, this.#context);
    const [place, open] = [cell.querySelector(".compare-name"), cell.querySelector(".compare-open")];
    this.#fill(place, [title, el("p", { text: machineTitle(column) }), el("p", {}, setupWords(column))], column);
    this.#fill(open, [link], column);
    cell.querySelector(".compare-change").setAttribute("aria-label", COMPARE.changeNamed(titleOf(column)));
    cell.querySelector(".compare-remove").setAttribute("aria-label", COMPARE.removeNamed(titleOf(column)));
    return cell;
  }

  #makeHead(column) {
    const apply = (choices) => this.#change(column, choices);
    const change = el("button", { type: "button", class: "small compare-change", text: COMPARE.change });
    change.setAttribute("aria-haspopup", "dialog");
    change.addEventListener("click", () => changeColumn(column, change, { signal: this.#signal, onapply: apply }));
    const remove = el("button", {
      type: "button",
      class: "small quiet compare-remove",
      onclick: () => this.#remove(column),
    }, "✕");
    return el(
      "th",
      { role: "columnheader", scope: "col", class: "compare-head", "data-column": column.id },
      el("div", { class: "compare-name" }),
      el("div", { class: "compare-buttons" }, change, el("span", { class: "compare-open" }), remove),
    );
  }

  #headButton(column) {
    return this.#cells.get(`head/${column.id}`)?.querySelector("button");
  }

  #showLegend(scales) {
    const bars = this.#columns.flatMap(({ check }) => check?.bars ?? []);
    const cut = cutAt(this.#columns, scales);
    const nodes = bars.length
      ? [legend(bars), cut && el("p", { class: "muted small", text: COMPARE.cut(cut) })].filter(Boolean)
      : [];
    this.#fill(this.#legend, nodes, this.#columns[0]);
  }

  #emptyState() {
    const chosen = ["", ""];
    const boxes = [COMPARE.empty.first, COMPARE.empty.second].map((label, at) =>
      finder({
        label,
        isLarge: true,
        placeholder: label,
        signal: this.#signal,
        oninput: (text) => (chosen[at] = text.trim()),
        onpick: (ref) => {
          chosen[at] = ref;
          boxes[at].input.value = ref;
          const next = chosen.findIndex((one) => !one);
          if (next >= 0) boxes[next].input.focus();
          else this.#setColumns(chosen.map((one) => ({ ref: one })));
        },
      })
    );
    const examples = Object.entries(EXAMPLES).map(([kind, columns]) => {
      const [name, told] = COMPARE.empty.rows[kind];
      const title = typeof name === "string" ? name : name(columns.map(({ engine }) => engineLabel(engine)));
      const query = queryOf(columns.map(makeColumn), "");
      return el(
        "li",
        {},
        el(
          "a",
          { class: "compare-example", href: `/compare?${query}` },
          el("strong", { text: title }),
          el("small", { text: told }),
        ),
      );
    });
    return el(
      "section",
      { class: "panel compare-empty", "aria-labelledby": "compare-empty" },
      el("h2", { id: "compare-empty", text: COMPARE.empty.title }),
      el(
        "div",
        { class: "compare-pair" },
        boxes[0].node,
        el("span", { class: "muted", text: COMPARE.empty.versus }),
        boxes[1].node,
      ),
      el("p", { class: "muted", text: COMPARE.empty.examples }),
      el("ul", { class: "compare-examples" }, examples),
    );
  }
}

/** A column without figures: an error, or an engine that cannot run the model. */
const isFault = ({ error }) => error !== null;

/** The cells of a row; nothing is moved that is in its place already. */
function arrange({ row, first }, cells) {
  cells.forEach((cell, at) => cell && (cell.style.gridColumn = at + 1));
  const nodes = [first, ...cells.filter(Boolean)];
  const isSame = nodes.length === row.children.length && nodes.every((node, at) => node === row.children[at]);
  if (!isSame) row.replaceChildren(...nodes);
}

/** The room of a value that is still to come. */
function skeleton(lines) {
  const rows = Array.from({ length: lines }, () => el("span", { class: "skeleton", "aria-hidden": "true", text: "0" }));
  return el("span", { class: "compare-skeleton" }, rows);
}
