// The machine picker: one line with its label, chips of popular machines, and a form for any other.

import { call } from "./api.js";
import { announce, el } from "./dom.js";
import { withoutMarks } from "./format.js";
import { counted, devices, machine, machineName, matching } from "./machine.js";
import { MOST_OF_ONE, namedBy, spelled, wishesOf } from "./machine.js";
import { isSameMachine, keepMachine, POPULAR, recentMachines } from "./machines.js";
import { COMMON, MACHINE } from "./texts.js";

const SHOWN = 12; // devices in the list at once
const COUNTS = [1, 2, 3, 4, 5, 6, 7, 8]; // in the menu, besides the current count
const SIZES = ["8G", "16G", "32G", "64G", "96G", "128G", "192G", "256G", "512G"];

let lastList = 0; // for unique ids of the lists of sizes

const wishOf = ([name, count]) => (count > 1 ? `${count}x ${name}` : name);

/** A control with its label above it, and a hint below. */
export function labelled(text, control, hint) {
  const id = (control.id ||= `m${Math.random().toString(36).slice(2)}`);
  const hintNode = hint && el("small", { id: `${id}-hint`, text: hint });
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return el("div", { class: "field" }, el("label", { htmlFor: id, text }), control, hintNode);
}

/** A chosen device: its count and a button to remove it. */
function chosenRow(name, present, { setCount, remove }) {
  const counts = [...new Set([...COUNTS, present])].sort((a, b) => a - b);
  const pick = el(
    "select",
    { "aria-label": MACHINE.howMany(name), onchange: () => setCount(Number(pick.value)) },
    counts.map((count) => el("option", { value: count, text: MACHINE.count(count), selected: count === present })),
  );
  return el(
    "li",
    {},
    pick,
    el("span", { text: name }),
    el("button", {
      type: "button",
      class: "quiet",
      "aria-label": COMMON.removeNamed(name),
      onclick: remove,
      text: COMMON.remove,
    }),
  );
}

/** The memory size as sold; drivers report slightly less. */
const sizeOf = ({ memory_bytes: size }) => MACHINE.size(Math.ceil(size / 1024 ** 3));

/** A device of the table that can be added. */
function offeredRow(row, add) {
  return el(
    "li",
    {},
    el(
      "button",
      { type: "button", class: "offer", "aria-label": MACHINE.addNamed(row.name, sizeOf(row)), onclick: add },
      el("span", { text: row.name }),
      el("small", { text: sizeOf(row) }),
    ),
  );
}

/** The chosen devices, and a search for more. Calls onchange() when one is added, removed or its count changes. */
export class DevicePart {
  wished = new Map(); // name -> how many
  #onchange;
  #isShort;
  #chosen = el("ul", { class: "chosen", "aria-label": MACHINE.chosen });
  #offered = el("ul", { class: "offers", "aria-label": MACHINE.devices });
  #find = el("input", { type: "search", placeholder: MACHINE.deviceExample, autocomplete: "off", maxLength: 80 });
  #more = el("p", { class: "muted small", role: "status" });

  /** isShort: lists devices only for a typed search. */
  constructor({ onchange = () => {}, isShort = false } = {}) {
    this.#onchange = onchange;
    this.#isShort = isShort;
    this.#find.addEventListener("input", () => this.#list());
    this.#find.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault(); // Enter would submit the form
      this.#offered.querySelector("button")?.click();
    });
    this.node = [this.#chosen, labelled(MACHINE.addDevice, this.#find), this.#offered, this.#more];
  }

  /** Sets the chosen devices: ["2x RTX 3090", ...]. */
  fill(wishes) {
    this.wished.clear();
    for (const [name, count] of wishes.flatMap(wishesOf)) this.wished.set(name, (this.wished.get(name) ?? 0) + count);
    this.#find.value = "";
    this.#redraw();
    this.#list();
  }

  /** Adds a device that was typed but not chosen yet. Returns an error message, or null. */
  async take() {
    const typed = this.#find.value.trim();
    if (!typed) return null;
    const row = namedBy(await devices(), counted(typed)[0]);
    if (row) this.#add(row.name);
    else this.#find.focus();
    return row ? null : MACHINE.notOneDevice(typed);
  }

  #add(name) {
    const isLeft = this.#offered.contains(document.activeElement); // its button goes
    const before = this.wished.get(name) ?? 0;
    const [, count] = counted(this.#find.value);
    this.wished.set(name, Math.max(before, Math.min(before + count, MOST_OF_ONE)));
    this.#find.value = ""; // it is in the list now
    this.#redraw();
    this.#list();
    if (isLeft) this.#find.focus();
    announce(MACHINE.added(wishOf([name, this.wished.get(name)])));
    this.#onchange();
  }

  #remove(name) {
    this.wished.delete(name);
    this.#redraw();
    this.#find.focus(); // its button is gone
    this.#onchange();
  }

  #setCount(name, count) {
    this.wished.set(name, count);
    this.#onchange();
  }

  #redraw() {
    const rows = [...this.wished].map(([name, count]) =>
      chosenRow(name, count, {
        setCount: (next) => this.#setCount(name, next),
        remove: () => this.#remove(name),
      })
    );
    this.#chosen.replaceChildren(...rows);
  }

  /** The chosen devices as the fields of a call have them: ["2x RTX 3090"]. */
  get wishes() {
    return [...this.wished].map(wishOf);
  }

  get #isHidden() {
    return this.#isShort && !this.#find.value.trim();
  }

  async #list() {
    if (this.#isHidden) {
      this.#offered.replaceChildren();
      this.#more.textContent = "";
      return;
    }
    try {
      const all = await devices();
      if (this.#isHidden) return; // emptied meanwhile
      const found = matching(all, counted(this.#find.value)[0]);
      this.#offered.replaceChildren(...found.slice(0, SHOWN).map((row) => offeredRow(row, () => this.#add(row.name))));
      this.#more.textContent = found.length ? MACHINE.shown(found.length, SHOWN) : MACHINE.unknownDevice;
    } catch (error) {
      this.#more.textContent = error.message;
    }
  }
}

function sizeInput(placeholder) {
  return el("input", { type: "text", placeholder, autocomplete: "off", maxLength: 200, size: 12 });
}

/**
 * The input fields of a machine: {nodes, fill(machine), said(), take()}. said() returns their values. take() adds a
 * device that was typed but not chosen yet, and returns an error message, or null.
 */
export function machineFields() {
  const part = new DevicePart();
  const ram = sizeInput("64G");
  const vram = sizeInput("24G,24G");
  const cpu = sizeInput(MACHINE.cpuExample);
  const sizes = el(
    "datalist",
    { id: `machine-sizes-${++lastList}` },
    SIZES.map((size) => el("option", { value: size })),
  );
  ram.setAttribute("list", sizes.id);
  return {
    nodes: [
      part.node,
      el(
        "div",
        { class: "pair" },
        labelled(MACHINE.systemRam, ram, MACHINE.systemRamHint),
        labelled(MACHINE.vram, vram, MACHINE.vramHint),
      ),
      labelled(MACHINE.cpu, cpu, MACHINE.cpuHint),
      sizes,
    ],
    fill(from) {
      part.fill(from.device);
      ram.value = from.ram;
      vram.value = from.vram;
      cpu.value = from.cpu;
    },
    said: () => ({ device: part.wishes, ram: ram.value.trim(), vram: vram.value.trim(), cpu: cpu.value.trim() }),
    take: () => part.take(),
  };
}

/** The form that describes a machine. */
function machineForm(close) {
  const fields = machineFields();
  const fault = el("p", { class: "error", role: "alert", hidden: true });
  const use = async (event) => {
    event.preventDefault();
    const failed = (await fields.take().catch((error) => error.message)) ?? (await tryMachine(fields.said()));
    fault.textContent = failed ?? "";
    fault.hidden = !failed;
    if (!failed) close();
  };
  const fill = () => {
    fields.fill(machine);
    fault.hidden = true;
  };
  const reset = el("button", { type: "button", text: MACHINE.reset, onclick: () => (machine.set(), close()) });
  const form = el(
    "form",
    { class: "machine-form", onsubmit: use },
    fields.nodes,
    fault,
    el("div", { class: "buttons" }, el("button", { type: "submit", class: "primary", text: MACHINE.use }), reset),
  );
  return { form, fill };
}

/** Chooses the machine if the server accepts it. Returns an error message, or null. */
async function tryMachine(fields) {
  const failed = await refusal(fields);
  if (!failed) machine.set(fields);
  return failed;
}

/** The server's error message for a machine; null if it accepts it. */
export async function refusal(fields) {
  try {
    if (!isSameMachine(fields, {})) await call("hardware", fields);
    return null;
  } catch (error) {
    return error.message;
  }
}

/** {node, name(label), fault(message), open()}: a line with the machine; a click opens the form. */
function machineLine(signal, { isSentence }) {
  const lead = el("span", { class: "muted machine-lead" });
  const label = el("strong", { class: "machine-name" });
  const close = () => {
    picker.open = false;
    summary.focus();
  };
  const { form, fill } = machineForm(close);
  const change = el("span", { class: "machine-change", text: MACHINE.change });
  const summary = el("summary", {}, lead, el("span", { class: "offscreen", text: MACHINE.label }), label, change);
  const picker = el("details", { class: "machine", ontoggle: () => picker.open && fill() }, summary, form);
  const message = el("p", { class: "error machine-fault", role: "alert", hidden: true });
  picker.addEventListener("keydown", (event) => event.key === "Escape" && picker.open && close());
  closeOutside(picker, signal);
  const name = (text) => {
    lead.textContent = isSentence ? MACHINE.on : machine.isThis ? MACHINE.thisComputerLead : "";
    lead.hidden = !lead.textContent;
    label.textContent = withoutMarks(text);
  };
  const fault = (text) => {
    const back = el("button", { type: "button", class: "small", text: MACHINE.reset, onclick: () => machine.set() });
    message.replaceChildren(...(text ? [el("span", { text: MACHINE.fault(text) }), machine.isThis ? "" : back] : []));
    message.hidden = !text;
  };
  const open = () => {
    picker.open = true;
    form.querySelector("input").focus();
  };
  name(machineName());
  return { node: [picker, message], name, fault, open };
}

/** One compact line, for the pages about models: "on RTX 4090 · 24 GB · 64 GB RAM  change". */
export function machinePicker(signal) {
  const line = machineLine(signal, { isSentence: true });
  let asked = new AbortController();
  const describe = async () => {
    asked.abort();
    asked = new AbortController();
    const ours = AbortSignal.any([asked.signal, signal]);
    line.name(machineName());
    const answer = await call("hardware", { ...machine }, { signal: ours }).catch(() => null); // the page reports it
    if (answer && !ours.aborted) line.name(answer.machine.label ?? machineName());
  };
  machine.addEventListener("change", describe, { signal });
  describe();
  return el("div", { class: "machine-picker" }, line.node);
}

/** {node, name(label), keep(name), fault(message)}: the line of the home page, with chips of machines next to it. */
export function machineChooser(signal) {
  const line = machineLine(signal, { isSentence: false });
  const chips = el("div", { class: "chip-line", role: "group", "aria-label": MACHINE.chips });
  const draw = () => {
    const isInside = chips.contains(document.activeElement);
    chips.replaceChildren(...chipRows().map(chipOf), otherChip(line.open));
    if (isInside) chips.querySelector('[aria-pressed="true"]')?.focus({ preventScroll: true });
    showChosen(chips);
  };
  machine.addEventListener("change", () => (draw(), line.name(machineName()), line.fault("")), { signal });
  draw();
  requestAnimationFrame(() => showChosen(chips));
  const keep = (name) => {
    const texts = () => chipRows().map(({ text }) => text).join("\n");
    const before = texts();
    keepMachine(machine, name);
    if (texts() !== before) draw();
  };
  return { node: el("div", { class: "machine-chooser" }, line.node, chips), name: line.name, keep, fault: line.fault };
}

/** The chips: this computer, recently used machines, popular ones; without duplicates. */
function chipRows() {
  const named = [{ text: MACHINE.thisComputer, fields: {} }, ...POPULAR];
  const recent = recentMachines(machine).filter((one) => !named.some(({ fields }) => isSameMachine(one, fields)));
  const rows = recent.map((fields) => ({ text: machineName(spelled(fields, fields.name ?? "")), fields }));
  return [named[0], ...rows, ...POPULAR];
}

function chipOf({ text, fields }) {
  const isChosen = String(isSameMachine(fields, machine));
  return el("button", {
    type: "button",
    class: "chip",
    "aria-pressed": isChosen,
    text,
    onclick: () => machine.set(fields),
  });
}

function otherChip(open) {
  return el("button", { type: "button", class: "chip", text: MACHINE.other, onclick: open });
}

/** Scrolls the chosen chip into view. */
function showChosen(chips) {
  const chosen = chips.querySelector('[aria-pressed="true"]');
  if (chosen) chips.scrollLeft = chosen.offsetLeft + chosen.offsetWidth - chips.clientWidth + 48;
}

/** Closes the form on a press outside it. */
function closeOutside(picker, signal) {
  const onPress = (event) => {
    if (!picker.contains(event.target)) picker.open = false;
  };
  document.addEventListener("pointerdown", onPress, { signal });
}
