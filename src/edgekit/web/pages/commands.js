// The commands that run the model: a tab for each program, with a button to copy.

import { call } from "./api.js";
import { copy, el } from "./dom.js";
import { engineLabel, PROGRAM_TABS, tabOf } from "./engines.js";
import { COMMANDS, COMMON } from "./texts.js";

const LONG = 7; // lines; longer texts are shortened
const KEPT = 4; // lines shown of a shortened text
const MOVES = { ArrowRight: 1, ArrowLeft: -1 };

/** A text with a copy button; with `hasName` its name is above it. */
export function commandBlock({ name, text, notes = [] }, hasName) {
  const button = el("button", {
    type: "button",
    class: "copy",
    text: COMMON.copy,
    "aria-label": COMMANDS.copyNamed(name),
  });
  button.addEventListener("click", () => copy(text, button));
  const code = el("code", { text });
  const pre = el("pre", { tabIndex: 0, "aria-label": name }, code);
  return el(
    "div",
    { class: "command" },
    hasName && el("h3", { text: name }),
    el("div", { class: "command-box" }, pre, button),
    unfolding(code, text),
    notes.map((note) => el("p", { class: "muted small", text: note })),
  );
}

/** Shows only the first lines of a long text. Returns the button that shows all; null if the text is short. */
function unfolding(code, text) {
  const lines = text.trimEnd().split("\n");
  if (lines.length <= LONG) return null;
  const short = `${lines.slice(0, KEPT).join("\n")}\n...`;
  const button = el("button", { type: "button", class: "link small", "aria-expanded": "false" });
  const show = (isWhole) => {
    code.textContent = isWhole ? text : short;
    button.textContent = isWhole ? COMMANDS.showLess : COMMANDS.showAll(lines.length);
    button.setAttribute("aria-expanded", String(isWhole));
  };
  button.addEventListener("click", () => show(button.getAttribute("aria-expanded") === "false"));
  show(false);
  return button;
}

/** The commands of each program: [["llama-server", [...]], ...]. */
function byProgram(commands) {
  const found = new Map();
  for (const one of commands) found.set(one.program, [...(found.get(one.program) ?? []), one]);
  return [...found];
}

/** The tabs and their panel. `fields(engine)`: the fields of a plan; `own()`: EdgeKit's own commands. */
export class Commands {
  #fields;
  #own;
  #tabs;
  #tab = null; // label of the open tab
  #isPicked = false; // the user chose the tab: it stays open
  #program = {}; // tab label -> the chosen program
  #check = null; // the last one
  #plans = new Map(); // fields as JSON -> the plan of another engine
  #request = new AbortController();
  #drawn = "";

  constructor({ fields, own, signal }) {
    this.#fields = fields;
    this.#own = own;
    const labels = [...PROGRAM_TABS.map(({ label }) => label), COMMANDS.edgekit];
    this.#tabs = labels.map((label, at) => this.#tabNode(label, at));
    this.list = el("div", { class: "tabs", role: "tablist", "aria-label": COMMANDS.tabs }, this.#tabs);
    this.list.addEventListener("keydown", (event) => this.#key(event));
    this.panel = el("div", { class: "command-panel", role: "tabpanel", id: "command-panel", tabIndex: -1 });
    this.node = el("div", {}, this.list, this.panel);
    signal.addEventListener("abort", () => this.#request.abort());
  }

  #tabNode(label, at) {
    const props = { type: "button", role: "tab", class: "tab", id: `command-tab-${at}`, "data-label": label };
    const node = el("button", { ...props, "aria-controls": "command-panel", text: label });
    node.addEventListener("click", () => this.#pick(label));
    return node;
  }

  /** Shows the commands of a check. The tab of its engine opens first. */
  show(check) {
    if (check.engine.name !== this.#check?.engine.name && !this.#isPicked) this.#tab = null;
    this.#check = check;
    const [first] = check.commands;
    this.#tab ??= tabOf(first?.program, check.engine.name) ?? COMMANDS.edgekit;
    this.#mark();
    this.#draw();
  }

  /** Updates the open command while a slider moves. The next check updates the rest. */
  follow(command) {
    const [first] = this.#check?.commands ?? [];
    if (!first || !command || this.#tab !== tabOf(first.program, this.#check.engine.name)) return;
    const { name } = first;
    const code = this.panel.querySelector(`pre[aria-label="${CSS.escape(name)}"] code`);
    if (code) code.textContent = command;
  }

  #pick(label) {
    this.#isPicked = true;
    this.#tab = label;
    this.#mark();
    this.#draw();
  }

  #mark() {
    for (const node of this.#tabs) {
      const isOpen = node.dataset.label === this.#tab;
      node.setAttribute("aria-selected", String(isOpen));
      node.tabIndex = isOpen ? 0 : -1;
      if (isOpen) this.panel.setAttribute("aria-labelledby", node.id);
    }
  }

  #key(event) {
    const now = this.#tabs.indexOf(document.activeElement);
    const ends = { Home: 0, End: this.#tabs.length - 1 };
    const to = event.key in MOVES ? (now + MOVES[event.key] + this.#tabs.length) % this.#tabs.length : ends[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.#tabs[to].focus();
    this.#pick(this.#tabs[to].dataset.label);
  }

  /** The engine of the open tab: that of the check, if the tab has it. */
  #engine() {
    const { engines } = PROGRAM_TABS.find(({ label }) => label === this.#tab);
    return engines.includes(this.#check.engine.name) ? this.#check.engine.name : engines[0];
  }

  #draw() {
    this.#request.abort();
    if (this.#tab === COMMANDS.edgekit) return this.#drawOwn();
    const engine = this.#engine();
    if (engine === this.#check.engine.name) return this.#list(this.#check, engine);
    return this.#plan(engine);
  }

  #drawOwn() {
    const rows = this.#own();
    this.#put(rows.map((one) => commandBlock(one, true)), rows);
  }

  /** Plans with another engine when its tab is opened. */
  async #plan(engine) {
    const fields = this.#fields(engine);
    const key = JSON.stringify(fields);
    const known = this.#plans.get(key);
    if (known) return this.#other(engine, known);
    this.#request = new AbortController();
    const { signal } = this.#request;
    this.#put([el("p", { class: "muted", role: "status", text: COMMANDS.planning })], key);
    let found;
    try {
      found = await call("plan", fields, { signal });
      this.#plans.set(key, found);
    } catch (error) {
      found = { headline: error.message, commands: [], isError: true };
    }
    if (!signal.aborted) this.#other(engine, found);
    return null;
  }

  /** Another engine's headline, then its commands. */
  #other(engine, found) {
    const line = el("p", { class: "tab-told", text: COMMANDS.otherEngine(engineLabel(engine), found.headline) });
    const commands = found.commands.filter((one) => tabOf(one.program, engine) === this.#tab);
    if (commands.length) this.#blocks(commands, [line]);
    else this.#put([line], found.headline);
  }

  #list({ commands, can_load: canLoad }, engine) {
    const own = commands.filter((one) => tabOf(one.program, engine) === this.#tab);
    if (own.length) return this.#blocks(own, []);
    const text = canLoad ? COMMANDS.noneHere(this.#tab) : COMMANDS.none;
    return this.#put([el("p", { class: "muted", text })], text);
  }

  /** Several programs of a tab are a choice (chips); several texts of one program are steps. */
  #blocks(commands, before) {
    const groups = byProgram(commands);
    const [program, shown] = groups.find(([name]) => name === this.#program[this.#tab]) ?? groups[0];
    const chips = groups.map(([name]) => this.#chip(name, name === program));
    const row = el("div", { class: "chips", role: "group", "aria-label": COMMANDS.programs(this.#tab) }, chips);
    const nodes = shown.map((one) => commandBlock(one, shown.length > 1));
    this.#put([...before, ...nodes, groups.length > 1 && row], [commands, program]);
  }

  #chip(name, isShown) {
    const chip = el("button", { type: "button", class: "chip small", "aria-pressed": String(isShown), text: name });
    chip.addEventListener("click", () => {
      this.#program[this.#tab] = name;
      this.#draw();
      [...this.panel.querySelectorAll(".chip")].find((one) => one.textContent === name)?.focus();
    });
    return chip;
  }

  /** Replaces the content only if it changed, so that a text selection and the focus stay. */
  #put(nodes, of) {
    const now = JSON.stringify([this.#tab, of]);
    if (now === this.#drawn) return;
    this.#drawn = now;
    const isInside = this.panel.contains(document.activeElement);
    this.panel.replaceChildren(...nodes.filter(Boolean));
    if (isInside) (this.panel.querySelector(".copy") ?? this.panel).focus({ preventScroll: true });
  }
}
