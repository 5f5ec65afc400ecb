// How to run it: a tab for each program, the commands of the present settings, and a button that copies them.

import { call } from "./api.js";
import { copy, el } from "./dom.js";
import { engineLabel, PROGRAM_TABS, tabOf } from "./engines.js";
import { COMMANDS, COMMON } from "./texts.js";

const LONG = 7; // lines; a longer text is folded
const KEPT = 4; // lines of a folded one
const MOVES = { ArrowRight: 1, ArrowLeft: -1 };

/** One text to copy, with its name above it where there are several. */
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

/** Only the first lines of a long text, until all of it is asked for. */
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

/** Commands by the program that runs them: [["llama-server", [...]], ...]. */
function byProgram(commands) {
  const found = new Map();
  for (const one of commands) found.set(one.program, [...(found.get(one.program) ?? []), one]);
  return [...found];
}

/** The tabs and their panel. `fields(engine)`: what another engine is asked; `own()`: EdgeKit's own commands. */
export class Commands {
  #fields;
  #own;
  #tabs;
  #tab = null; // label of the open tab
  #isPicked = false; // by a person: it stays open
  #program = {}; // label -> the program that was picked in it
  #check = null; // of the present settings, or of those before
  #plans = new Map(); // fields -> the plan of another engine, or its error
  #asked = new AbortController();
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
    signal.addEventListener("abort", () => this.#asked.abort());
  }

  #tabNode(label, at) {
    const props = { type: "button", role: "tab", class: "tab", id: `command-tab-${at}`, "data-label": label };
    const node = el("button", { ...props, "aria-controls": "command-panel", text: label });
    node.addEventListener("click", () => this.#pick(label));
    return node;
  }

  /** The commands of a check; the tab of its engine opens first. */
  show(check) {
    if (check.engine.name !== this.#check?.engine.name && !this.#isPicked) this.#tab = null;
    this.#check = check;
    const [first] = check.commands;
    this.#tab ??= tabOf(first?.program, check.engine.name) ?? COMMANDS.edgekit;
    this.#mark();
    this.#draw();
  }

  /** While a slider moves: the command of this moment. The others come when it rests. */
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

  /** The engine whose commands the open tab has: the one that answered, if it has some. */
  #engine() {
    const { engines } = PROGRAM_TABS.find(({ label }) => label === this.#tab);
    return engines.includes(this.#check.engine.name) ? this.#check.engine.name : engines[0];
  }

  #draw() {
    this.#asked.abort();
    if (this.#tab === COMMANDS.edgekit) return this.#drawOwn();
    const engine = this.#engine();
    if (engine === this.#check.engine.name) return this.#list(this.#check, engine);
    return this.#plan(engine);
  }

  #drawOwn() {
    const rows = this.#own();
    this.#put(rows.map((one) => commandBlock(one, true)), rows);
  }

  /** Another engine is asked when its tab is open. */
  async #plan(engine) {
    const fields = this.#fields(engine);
    const key = JSON.stringify(fields);
    const known = this.#plans.get(key);
    if (known) return this.#other(engine, known);
    this.#asked = new AbortController();
    const { signal } = this.#asked;
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

  /** What another engine says, in one line, then its commands. */
  #other(engine, found) {
    const told = el("p", { class: "tab-told", text: COMMANDS.otherEngine(engineLabel(engine), found.headline) });
    const commands = found.commands.filter((one) => tabOf(one.program, engine) === this.#tab);
    if (commands.length) this.#blocks(commands, [told]);
    else this.#put([told], found.headline);
  }

  #list({ commands, can_load: canLoad }, engine) {
    const own = commands.filter((one) => tabOf(one.program, engine) === this.#tab);
    if (own.length) return this.#blocks(own, []);
    const text = canLoad ? COMMANDS.noneHere(this.#tab) : COMMANDS.none;
    return this.#put([el("p", { class: "muted", text })], text);
  }

  /** Several programs of a tab are a choice; several texts of one program are steps. */
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

  /** New content only where it is another: what is selected or focused in it stays. */
  #put(nodes, of) {
    const now = JSON.stringify([this.#tab, of]);
    if (now === this.#drawn) return;
    this.#drawn = now;
    const isInside = this.panel.contains(document.activeElement);
    this.panel.replaceChildren(...nodes.filter(Boolean));
    if (isInside) (this.panel.querySelector(".copy") ?? this.panel).focus({ preventScroll: true });
  }
}
