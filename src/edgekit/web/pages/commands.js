// The present settings -> commands that can be copied; those of other programs when they are asked for.

import { call } from "./api.js";
import { copy, el } from "./dom.js";
import { engineNamed } from "./engines.js";
import { COMMANDS, COMMON } from "./texts.js";

function block({ name, text, notes = [] }) {
  const button = el("button", { type: "button", class: "small", text: COMMON.copy, "aria-label": COMMANDS.copyNamed(name) });
  button.addEventListener("click", () => copy(text, button));
  return el(
    "div",
    { class: "model-command" },
    el("div", { class: "row spread" }, el("h3", { text: name }), button),
    el("pre", { tabIndex: 0, "aria-label": name }, el("code", { text })),
    ...notes.map((note) => el("p", { class: "muted small", text: note })),
  );
}

/** `edgekit estimate ...` with another verb: the flags are the same but for what the machine says itself. */
function asVerb(command, verb) {
  return command.replace(/^edgekit estimate /, `edgekit ${verb} `).replace(/ --(cpu|device-memory) \S+/g, "");
}

function ofSettings(fit, isRunnable) {
  const rows = [];
  const engine = engineNamed(fit.engine);
  if (fit.command) rows.push({ name: COMMANDS.own(engine?.program ?? fit.engine), text: fit.command });
  if (engine?.runs && fit.can_load && isRunnable) {
    rows.push({ name: COMMANDS.run, text: asVerb(fit.estimate_command, "run") });
    if (engine.serves) rows.push({ name: COMMANDS.serve, text: asVerb(fit.estimate_command, "serve") });
  }
  rows.push({ name: COMMANDS.estimate, text: fit.estimate_command });
  return rows;
}

/**
 * {node, show(fit), follow()}. `fields()` gives what a plan is asked: where it changes, the plan is gone.
 * A file can be run, a name of the catalog cannot.
 */
export function commands(fields, { isRunnable, signal }) {
  const own = el("div", { class: "command-list" });
  const others = new Others(fields, signal);
  let drawn = "";
  const show = (fit) => {
    const rows = ofSettings(fit, isRunnable());
    const now = JSON.stringify(rows);
    if (now === drawn) return;
    drawn = now;
    own.replaceChildren(...rows.map(block));
  };
  const hint = el("p", { class: "muted small", text: COMMANDS.othersHint });
  return { node: el("div", {}, own, others.button, hint, others.place), show, follow: () => others.follow() };
}

/** The commands of other programs, for as long as what they were planned for is what is asked. */
class Others {
  #fields;
  #of = null; // the fields that were planned with
  #control = new AbortController();

  constructor(fields, signal) {
    this.#fields = fields;
    this.place = el("div", { class: "command-list", "aria-live": "polite" });
    this.button = el("button", { type: "button", text: COMMANDS.others, onclick: () => this.#plan() });
    signal.addEventListener("abort", () => this.#control.abort());
  }

  /** Settings changed: what was planned for others is called off, and does not stay. */
  follow() {
    if (this.#of === null || this.#of === JSON.stringify(this.#fields())) return;
    this.#of = null;
    this.#control.abort();
    this.#show();
  }

  #show(...nodes) {
    this.place.replaceChildren(...nodes);
    this.button.ariaBusy = null;
  }

  async #plan() {
    if (this.button.ariaBusy === "true") return; // not disabled: it would lose the focus
    const fields = this.#fields();
    this.#of = JSON.stringify(fields);
    this.#control = new AbortController();
    const { signal } = this.#control;
    this.#show(el("p", { class: "muted", text: COMMANDS.planning }));
    this.button.ariaBusy = "true";
    try {
      const found = await call("plan", fields, { signal });
      if (!signal.aborted) this.#show(...planned(found));
    } catch (error) {
      if (!signal.aborted) this.#show(el("p", { class: "error", text: error.message }));
    }
  }
}

function planned(found) {
  const why = found.decisions.map((one) => el("li", {}, el("strong", { text: COMMANDS.decision(one.lever, one.value) }), COMMANDS.because(one.because)));
  return [el("ul", { class: "decisions" }, ...why), ...found.commands.map((one) => block(one))];
}
