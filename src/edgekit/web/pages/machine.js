// The chosen machine: this computer, or a described one.

import { call } from "./api.js";
import { withoutMarks } from "./format.js";
import { replaceQuery, travel } from "./router.js";
import { MACHINE } from "./texts.js";

export { machineChooser, machinePicker } from "./picker.js";

const FIELDS = ["device", "ram", "vram", "cpu"];

/** {device: [...], ram, vram, cpu}; {...machine} are the fields of a call. Dispatches "change". */
class Chosen extends EventTarget {
  device = [];
  ram = "";
  vram = "";
  cpu = "";

  /** Whether it is this computer, the one that runs the server. */
  get isThis() {
    return !this.device.length && !this.ram && !this.vram && !this.cpu;
  }

  /** Chooses a machine, also in the address; without fields it is this computer. */
  set({ device = [], ram = "", vram = "", cpu = "" } = {}) {
    Object.assign(this, { device, ram, vram, cpu });
    replaceQuery(new URLSearchParams(location.search));
    this.dispatchEvent(new Event("change"));
  }
}

export const machine = new Chosen();

/** "64G" -> "64 GB", "64G DDR5-6000" -> "64 GB DDR5-6000"; anything else is unchanged. */
const sizeName = (text) => text.replace(/^\s*(\d+(?:\.\d+)?)\s*G(?:i?B)?(?=\s|$)\s*/i, "$1 GB ").trim();

/** The label of a machine until the server sends its own: "2x RTX 3090 · 64 GB RAM". */
export function machineName({ device = [], ram = "", vram = "", cpu = "" } = machine) {
  const devices = [...device, vram && MACHINE.gpus(sizeName(vram))].filter(Boolean).join(" + ");
  const parts = [devices, cpu, ram && MACHINE.ram(sizeName(ram))].filter(Boolean);
  return withoutMarks(parts.join(" · ")) || MACHINE.thisComputer;
}

/** The machine with its devices as they are in the server's name for it: "rtx 4090" -> "RTX 4090". */
export function spelled(fields, name) {
  const key = (wish) => counted(wish).join().toLowerCase().replaceAll(/\s+/g, "");
  const parts = name.split(" + ");
  const device = fields.device.map((wish) => parts.find((part) => key(part) === key(wish)) ?? wish);
  return { ...fields, device };
}

travel({
  enter(params) {
    machine.device = params.getAll("device");
    machine.ram = params.get("ram") ?? "";
    machine.vram = params.get("vram") ?? "";
    machine.cpu = params.get("cpu") ?? "";
  },
  write(params, { isForced }) {
    if (!isForced && FIELDS.some((name) => params.has(name))) return;
    for (const name of FIELDS) params.delete(name);
    for (const one of machine.device) params.append("device", one);
    if (machine.ram) params.set("ram", machine.ram);
    if (machine.vram) params.set("vram", machine.vram);
    if (machine.cpu) params.set("cpu", machine.cpu);
  },
});

let table = null; // promise of the devices, requested once

/** All known devices, the most common first. */
export function devices() {
  table ??= call("devices").then(
    (answer) => [...answer.devices].sort((a, b) => Number(b.usual) - Number(a.usual)),
    (error) => {
      table = null; // the next call tries again
      throw error;
    },
  );
  return table;
}

export const MOST_OF_ONE = 64; // devices with one name; the limit of the server

/** "2x RTX 3090", "2xRTX 3090", "RTX 3090 x2" -> ["RTX 3090", 2], as the server reads it. */
export function counted(wish) {
  const [, before, rest] = /^\s*(\d+)\s*[x×*]\s*(.*)$/i.exec(wish) ?? [];
  const [, first, after] = /^(.*\S)\s+x(\d{1,3})\s*$/i.exec(wish) ?? [];
  const [name, count] = [rest ?? first, Number(before ?? after)];
  return count >= 1 && count <= MOST_OF_ONE ? [name.trim(), count] : [wish.trim(), 1];
}

/** [[name, count], ...] of "RTX 3090 + 2x RTX 4090". The + in the name "Ryzen AI Max+ 395" does not separate. */
export function wishesOf(wish) {
  return wish.split(/,|(?<!max)\+/i).map(counted).filter(([name]) => name);
}

const plain = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, " ").trim();

/** Rows with every typed word in their vendor, name or kind, in any order. */
export function matching(rows, typed) {
  const words = plain(typed).split(" ").filter(Boolean);
  return rows.filter((row) => {
    const text = plain(`${row.vendor} ${row.name} ${row.kind}`);
    const joined = text.replaceAll(" ", "");
    return words.every((word) => text.includes(word) || joined.includes(word));
  });
}

/** The only device with these words, or the one with exactly this name; null if neither. */
export function namedBy(rows, typed) {
  const found = matching(rows, typed);
  const wanted = plain(typed);
  const isNamed = (row) => [row.name, `${row.vendor} ${row.name}`].some((name) => plain(name) === wanted);
  return found.length === 1 ? found[0] : (found.find(isNamed) ?? null);
}

/** Equal rows merged, with their count: [[row, 2], ...]. */
export function grouped(rows) {
  const found = new Map();
  for (const row of rows) {
    const key = JSON.stringify({ ...row, index: 0, pools: 0 });
    found.set(key, [row, (found.get(key)?.[1] ?? 0) + 1]);
  }
  return [...found.values()];
}
