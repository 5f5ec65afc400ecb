// The dialog that changes a column: its model, engine, quantisation and machine.

import { engineOf, quantsOf, titleOf } from "./compare_columns.js";
import { el } from "./dom.js";
import { ENGINES } from "./engines.js";
import { finder } from "./finder.js";
import { machine, machineName } from "./machine.js";
import { labelled, machineFields, refusal } from "./picker.js";
import { COMMON, COMPARE } from "./texts.js";

const TEXTS = COMPARE.dialog;
const SAME = "same"; // the page's machine
const THIS = "this"; // this computer
const OTHER = "other";
const NO_MACHINE = { device: [], ram: "", vram: "", cpu: "" };
const GAP = 8; // px between the head of the column and the dialog
const WIDE = "(min-width: 641px)";

const isThis = (asked) => !asked.device.length && !asked.ram && !asked.vram && !asked.cpu;

/** A menu of the quantisations that the engine lists; a text field where it lists none. */
function quantField(engine, value) {
  const values = quantsOf(engine);
  if (!values.length) {
    return el("input", { type: "text", value, placeholder: TEXTS.quantExample, maxLength: 80, autocomplete: "off" });
  }
  const options = [
    ["", TEXTS.quantAuto],
    ...[...new Set([...values, value])].filter(Boolean).map((name) => [name, name]),
  ];
  const select = el("select", {}, options.map(([name, text]) => el("option", { value: name, text })));
  select.value = value;
  return select;
}

function engineField(value) {
  const select = el("select", {}, ENGINES.map(([name, text]) => el("option", { value: name, text })));
  select.value = value;
  return select;
}

/** Which machine the column asks about: the page's, this computer, or another one. */
class MachineChoice {
  #fields = machineFields();
  #radios;
  #other;

  constructor(column) {
    const { on } = column;
    const chosen = on === null ? SAME : isThis(on) ? THIS : OTHER;
    const name = `machine-${column.id}`;
    const rows = [[SAME, TEXTS.same(machineName())], ...(machine.isThis ? [] : [[THIS, TEXTS.this]]), [
      OTHER,
      TEXTS.other,
    ]];
    this.#radios = rows.map(([value, text]) => {
      const radio = el("input", {
        type: "radio",
        name,
        value,
        checked: value === chosen,
        onchange: () => this.#show(),
      });
      return { radio, node: el("label", { class: "check" }, radio, text) };
    });
    this.#other = el("div", { class: "compare-other" }, this.#fields.nodes);
    this.#fields.fill(on ?? NO_MACHINE);
    const label = el("p", { id: `${name}-label`, class: "small muted", text: TEXTS.machine });
    this.node = el(
      "div",
      { class: "compare-machine", role: "radiogroup", "aria-labelledby": label.id },
      label,
      this.#radios.map(({ node }) => node),
      this.#other,
    );
    this.#show();
  }

  get #value() {
    return this.#radios.find(({ radio }) => radio.checked)?.radio.value ?? SAME;
  }

  #show() {
    this.#other.hidden = this.#value !== OTHER;
  }

  /** {on} as the column has it, or {failed}: why the server does not understand it. */
  async read() {
    if (this.#value === SAME) return { on: null };
    if (this.#value === THIS) return { on: NO_MACHINE };
    const failed = (await this.#fields.take().catch((error) => error.message)) ?? (await refusal(this.#fields.said()));
    return failed ? { failed } : { on: this.#fields.said() };
  }
}

/** The fields of one column, and what they say. */
class Editor {
  #column;
  #model;
  #engine;
  #quant;
  #quantPlace = el("div");
  #machine;
  #picked;

  constructor(column, signal, submit) {
    this.#column = column;
    this.#picked = column.ref;
    this.#model = finder({
      label: TEXTS.model,
      value: titleOf(column),
      signal,
      onpick: (reference) => {
        this.#picked = reference;
        this.#model.input.value = reference;
        submit();
      },
      oninput: (text) => (this.#picked = text),
    });
    this.#engine = engineField(column.engine);
    this.#engine.addEventListener("change", () => this.#drawQuant(""));
    this.#machine = new MachineChoice(column);
    this.#drawQuant(column.quant);
    const model = el(
      "div",
      { class: "field" },
      el("label", { htmlFor: this.#model.input.id, text: TEXTS.model }),
      this.#model.node,
    );
    const engine = labelled(TEXTS.engine, this.#engine);
    this.nodes = [model, el("div", { class: "pair" }, engine, this.#quantPlace), this.#machine.node];
  }

  #drawQuant(value) {
    const engine = this.#engine.value ||
      engineOf({ ...this.#column, engine: "", check: this.#column.engine ? null : this.#column.check });
    this.#quant = quantField(engine, value);
    this.#quantPlace.replaceChildren(labelled(TEXTS.quant, this.#quant));
  }

  /** The choices of the column, or {failed}. */
  async read() {
    const machineRead = await this.#machine.read();
    if (machineRead.failed) return machineRead;
    const ref = this.#picked.trim() || this.#column.ref;
    return { choices: { ref, engine: this.#engine.value, quant: this.#quant.value.trim(), on: machineRead.on } };
  }
}

/** Below the button that opened it, inside the window; on a phone it is where the browser puts it. */
function place(dialog, button) {
  if (!matchMedia(WIDE).matches) return;
  const { left, bottom } = button.getBoundingClientRect();
  const { width, height } = dialog.getBoundingClientRect();
  dialog.style.left = `${Math.max(GAP, Math.min(left, innerWidth - width - GAP))}px`;
  dialog.style.top = `${Math.max(GAP, Math.min(bottom + GAP, innerHeight - height - GAP))}px`;
}

/** Opens the dialog of a column; onapply(choices) when something else was chosen. */
export function changeColumn(column, button, { signal, onapply }) {
  const fault = el("p", { class: "error", role: "alert", hidden: true });
  const apply = async (event) => {
    event?.preventDefault();
    const { choices, failed } = await editor.read();
    fault.hidden = !failed;
    fault.textContent = failed ?? "";
    if (failed) return;
    dialog.close();
    onapply(choices);
  };
  const editor = new Editor(column, signal, apply);
  const cancel = el("button", { type: "button", text: COMMON.cancel, onclick: () => dialog.close() });
  const submit = el("button", { type: "button", class: "primary", text: TEXTS.apply, onclick: apply });
  const title = el("h2", { id: `change-${column.id}`, tabIndex: -1, text: TEXTS.title });
  const dialog = el(
    "dialog",
    { class: "compare-dialog", "aria-labelledby": title.id },
    title,
    el("div", { class: "compare-editor" }, editor.nodes, fault),
    el("div", { class: "buttons" }, submit, cancel),
  );
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // beside it
  dialog.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented) return; // the completions take it first
    event.preventDefault(); // a search box would only be emptied
    dialog.close();
  });
  dialog.addEventListener("close", () => {
    watch.disconnect();
    dialog.remove();
    if (button.isConnected) button.focus();
  });
  signal.addEventListener("abort", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  const watch = new ResizeObserver(() => place(dialog, button)); // it grows with the fields of another machine
  watch.observe(dialog);
  title.focus(); // in the search box it would open the completions
}

/** Whether two sets of choices ask the same question. */
export const isSame = (a, b) =>
  JSON.stringify([a.ref, a.engine, a.quant, a.on]) === JSON.stringify([b.ref, b.engine, b.quant, b.on]);
