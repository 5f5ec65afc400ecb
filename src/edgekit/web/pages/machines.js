// Machines to choose with one press: popular ones, and those used last, which the browser keeps.

import { MACHINE } from "./texts.js";

const KEY = "edgekit-machines";
const MAX_RECENT = 3;
const MAX_CHARS = 200; // of one field; the server takes no more
const MAX_DEVICES = 16;

/** Each with the RAM that such a computer usually has. */
export const POPULAR = [
  { text: MACHINE.popular.large, fields: { device: ["RTX 4090"], ram: "64G" } },
  { text: MACHINE.popular.usual, fields: { device: ["RTX 3060"], ram: "32G" } },
  { text: MACHINE.popular.newest, fields: { device: ["RTX 5090"], ram: "64G" } },
  { text: MACHINE.popular.mac, fields: { device: ["M4 Max 64GB"] } },
  { text: MACHINE.popular.small, fields: { device: ["RTX 4060"], ram: "16G" } },
];

const size = (text) => text.trim().toUpperCase().replace(/\s*I?B$/, "");

const written = ({ device = [], ram = "", vram = "", cpu = "" }) =>
  JSON.stringify([device.map((one) => one.trim().toLowerCase()), size(ram), size(vram), cpu.trim().toLowerCase()]);

export const isSameMachine = (one, other) => written(one) === written(other);

const isText = (value) => typeof value === "string" && value.length <= MAX_CHARS;

/** What was kept may be of another version, or from somebody else. */
function isMachine(value) {
  const { device, ram, vram, cpu } = value ?? {};
  const areDevices = Array.isArray(device) && device.length <= MAX_DEVICES && device.every(isText);
  return areDevices && [ram, vram, cpu].every(isText);
}

function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter(isMachine).slice(0, MAX_RECENT) : [];
  } catch {
    return []; // storage is switched off, or holds something else
  }
}

const isListed = (fields) => [{ fields: {} }, ...POPULAR].some((one) => isSameMachine(one.fields, fields));

/** The machines used last; the chosen one is among them, unless it has a chip of its own. */
export function recentMachines(chosen) {
  const found = kept();
  if (isListed(chosen) || found.some((one) => isSameMachine(one, chosen))) return found;
  return [fieldsOf(chosen), ...found].slice(0, MAX_RECENT);
}

const fieldsOf = ({ device, ram, vram, cpu }) => ({ device: [...device], ram, vram, cpu });

/** Keeps a machine that the server knows; the one used last is not moved, so that chips stay where they are. */
export function keepMachine(chosen) {
  if (isListed(chosen)) return;
  try {
    localStorage.setItem(KEY, JSON.stringify(recentMachines(chosen)));
  } catch {
    // used on this page, not kept
  }
}
