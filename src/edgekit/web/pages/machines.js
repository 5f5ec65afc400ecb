// Machines offered as chips: popular ones, and recently used ones from localStorage.

import { MACHINE } from "./texts.js";

const KEY = "edgekit-machines";
const MAX_RECENT = 3;
const MAX_CHARS = 200; // of one field; the limit of the server
const MAX_DEVICES = 16;

/** Popular machines, each with its usual RAM. */
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

/** Validates a stored machine: another version of EdgeKit may have written it. */
function isMachine(value) {
  const { device, ram, vram, cpu, name = "" } = value ?? {};
  const areDevices = Array.isArray(device) && device.length <= MAX_DEVICES && device.every(isText);
  return areDevices && [ram, vram, cpu, name].every(isText);
}

function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter(isMachine).slice(0, MAX_RECENT) : [];
  } catch {
    return []; // storage is disabled, or its content invalid
  }
}

const isListed = (fields) => [{ fields: {} }, ...POPULAR].some((one) => isSameMachine(one.fields, fields));

/** Whether a popular machine has the same devices and this one no RAM of its own: their chips would look the same. */
function isLikePopular(fields) {
  const devices = spelled(fields.device);
  const areSame = (one) =>
    spelled(one.device) === devices && [size(one.ram ?? ""), ""].includes(size(fields.ram ?? ""));
  return !fields.vram && !fields.cpu && POPULAR.some((one) => areSame(one.fields));
}

const spelled = (devices) => JSON.stringify(devices.map((one) => one.toLowerCase().replaceAll(/\s+/g, "")));

/** The recently used machines, including the chosen one unless a popular one looks the same. */
export function recentMachines(chosen) {
  const found = kept().filter((one) => !isLikePopular(one));
  if (isListed(chosen) || isLikePopular(chosen) || found.some((one) => isSameMachine(one, chosen))) return found;
  return [fieldsOf(chosen), ...found].slice(0, MAX_RECENT);
}

const fieldsOf = ({ device, ram, vram, cpu }) => ({ device: [...device], ram, vram, cpu });

/**
 * Stores a machine that the server accepted, with the server's name for it. One that is stored already keeps its
 * place, so that chips do not move.
 */
export function keepMachine(chosen, name) {
  if (isListed(chosen)) return;
  const named = (one) => (isSameMachine(one, chosen) ? { ...one, name: name.slice(0, MAX_CHARS) } : one);
  try {
    localStorage.setItem(KEY, JSON.stringify(recentMachines(chosen).map(named)));
  } catch {
    // storage is disabled: used on this page only
  }
}
