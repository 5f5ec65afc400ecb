// The builder of a machine. Every change applies at once.

import { el } from "./dom.js";
import { counted, devices, machine, spelled } from "./machine.js";
import { DevicePart, labelled, refusal } from "./picker.js";
import { HARDWARE, MACHINE } from "./texts.js";

const TEXTS = HARDWARE.builder;
const USUAL = ["RTX 3060", "RTX 4060 Ti 16GB", "RTX 4090", "RTX 5090", "RX 7900 XTX", "M4 Max 64GB"];
const SIZES = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024];
const USUAL_RAM = "64G"; // added to the first card if the RAM of this computer is unknown
const RAM = /^(\d+)\s*G(?:i?B)?(?:\s+(\S+))?$/i; // "64G", "64G DDR5-6000"

/** A menu. set() adds a value that is not in it. */
function menu(rows, onchange) {
  const select = el("select", { onchange }, rows.map(([value, text]) => el("option", { value, text })));
  const set = (value) => {
    const isListed = [...select.options].some((option) => option.value === value);
    if (!isListed) select.append(el("option", { value, text: value }));
    select.value = value;
  };
  return { select, set };
}

/** The controls of a machine. `ownRam()`: the RAM of this computer as a field, "" if unknown. */
export class MachineBuilder {
  #part = new DevicePart({ isShort: true, onchange: () => this.#read() });
  #ram = menu([["", TEXTS.ramNone], ...SIZES.map((size) => [`${size}G`, TEXTS.ramSize(size)])], () => this.#read());
  #speed = menu([["", TEXTS.ramSpeedNone], ...Object.entries(TEXTS.ramSpeeds)], () => this.#read());
  #vram = el("input", { type: "text", placeholder: "24G,24G", autocomplete: "off", maxLength: 200 });
  #cpu = el("input", { type: "text", placeholder: MACHINE.cpuExample, autocomplete: "off", maxLength: 200 });
  #fault = el("p", { class: "error", role: "alert", hidden: true });
  #own = el("p", { class: "small muted", text: TEXTS.own, hidden: true });
  #chips;
  #reset;
  #ownRam;
  #requests = 0;
  #devices = machine.device; // of the chosen machine
  #isOwn = false; // the change comes from these controls
  #more;

  constructor(signal, ownRam) {
    this.#ownRam = ownRam;
    for (const field of [this.#vram, this.#cpu]) field.addEventListener("change", () => this.#read());
    this.#chips = new Map(
      [...USUAL, ""].map((name) => [
        name,
        el("button", {
          type: "button",
          class: "chip",
          text: name || TEXTS.none,
          onclick: () => this.#take(name ? [name] : []),
        }),
      ]),
    );
    this.#reset = el("button", { type: "button", text: MACHINE.reset, onclick: () => machine.set() });
    this.#more = el(
      "details",
      { class: "unfold" },
      el("summary", { text: TEXTS.more }),
      labelled(MACHINE.vram, this.#vram, MACHINE.vramHint),
      labelled(MACHINE.cpu, this.#cpu, MACHINE.cpuHint),
    );
    this.node = el(
      "form",
      { class: "panel builder", "aria-label": TEXTS.title, onsubmit: (event) => event.preventDefault() },
      el("h2", { text: TEXTS.title }),
      el("p", { class: "small muted", text: TEXTS.lead }),
      el("div", { class: "chips", role: "group", "aria-label": TEXTS.usual }, ...this.#chips.values()),
      this.#part.node,
      el("div", { class: "pair" }, labelled(TEXTS.ram, this.#ram.select), labelled(TEXTS.ramSpeed, this.#speed.select)),
      this.#own,
      this.#more,
      this.#fault,
      el("div", { class: "buttons" }, el("a", { class: "button primary", href: "/", text: TEXTS.see }), this.#reset),
    );
    const changed = () => {
      this.#devices = machine.device;
      if (this.#isOwn) this.#mark();
      else this.#fill();
    };
    machine.addEventListener("change", changed, { signal });
    this.#fill();
  }

  /** Writes the devices as they are in the server's name for the machine. */
  spell(name) {
    this.#devices = spelled(machine, name).device;
    if (this.#devices.join() === machine.device.join()) return;
    this.#part.fill(this.#devices);
    this.#mark();
  }

  /** Shows the chosen machine in the controls. */
  #fill() {
    this.#part.fill(this.#devices);
    const [, size, speed] = RAM.exec(machine.ram) ?? [];
    this.#ram.set(size ? `${size}G` : machine.ram);
    this.#speed.set(size ? (speed ?? "") : "");
    this.#vram.value = machine.vram;
    this.#cpu.value = machine.cpu;
    this.#more.open ||= Boolean(machine.vram || machine.cpu);
    this.#fault.hidden = true;
    this.#mark();
  }

  /** Marks the chosen chip, and disables controls that do not apply to the device. */
  async #mark() {
    this.#reset.disabled = machine.isThis;
    this.#ram.select.options[0].textContent = machine.isThis ? TEXTS.ramOwn : TEXTS.ramNone;
    const [only, ...others] = this.#devices;
    for (const [name, chip] of this.#chips) {
      const isThisOne = name ? only === name && !others.length : !machine.isThis && !only && !machine.vram;
      chip.setAttribute("aria-pressed", String(isThisOne));
    }
    const isWhole = (await this.#wholeMachines(this.#devices)).length > 0;
    this.#own.hidden = !isWhole;
    this.#ram.select.disabled = isWhole;
    this.#speed.select.disabled = isWhole || !this.#ram.select.value;
  }

  /** Those devices that are complete machines: they have their own RAM and no other device. */
  async #wholeMachines(names) {
    const known = await devices().catch(() => []);
    const kinds = new Map(known.map((row) => [row.name, row.kind]));
    return names.filter((name) => !["gpu", undefined].includes(kinds.get(counted(name)[0])));
  }

  #fields() {
    const size = this.#ram.select.value;
    const ram = [size, size && this.#speed.select.value].filter(Boolean).join(" ");
    return { device: this.#part.wishes, ram, vram: this.#vram.value.trim(), cpu: this.#cpu.value.trim() };
  }

  #take(names) {
    this.#part.fill(names);
    if (names.length) this.#vram.value = "";
    this.#read();
  }

  /** Whether the first device comes with a RAM size: after this computer, and for a machine without a GPU. */
  #needsRam() {
    return machine.isThis || (!this.#part.wishes.length && !this.#vram.value.trim());
  }

  /** Chooses the machine of the controls if the server accepts it. */
  async #read() {
    const request = ++this.#requests;
    const wishes = this.#part.wishes;
    const whole = await this.#wholeMachines(wishes);
    if (request !== this.#requests) return;
    const isWhole = whole.includes(wishes.at(-1)); // the device added last wins
    if (whole.length && wishes.length > 1) {
      this.#part.fill(isWhole ? wishes.slice(-1) : wishes.filter((name) => !whole.includes(name)));
    }
    if (isWhole) this.#ram.set("");
    else if (!this.#ram.select.value && this.#needsRam()) this.#ram.set(this.#ownRam() || USUAL_RAM);
    if (!this.#ram.select.value) this.#speed.set("");
    const fields = this.#fields();
    const failed = await refusal(fields);
    if (request !== this.#requests) return;
    this.#fault.textContent = failed ?? "";
    this.#fault.hidden = !failed;
    if (failed) return;
    this.#isOwn = true; // do not overwrite what the user types
    machine.set(fields);
    this.#isOwn = false;
  }
}
