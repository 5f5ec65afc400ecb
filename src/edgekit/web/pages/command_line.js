// The settings of the page as a command of EdgeKit.

import { flagWords } from "./engines.js";

const ESCAPED = String.raw`'\''`; // a single quote inside single quotes
const SAFE = /^[\w@%+=:,./-]+$/;

/** A word as a POSIX shell reads it. */
const quoted = (word) => (SAFE.test(word) ? word : ["", word.replaceAll("'", ESCAPED), ""].join("'"));

/** The machine as flags; none for this computer. */
function machineWords({ device, ram, vram, cpu }) {
  const words = device.flatMap((one) => ["--device", one]);
  for (const [name, value] of Object.entries({ ram, vram, cpu })) {
    if (value) words.push(`--${name}`, value);
  }
  return words;
}

/** `edgekit check gemma-3-27b -c 8192 --device 'RTX 4090'`: only with the flags that the user chose. */
export function checkCommand(verb, settings, machine, also = []) {
  const words = ["edgekit", verb, settings.name, ...chosenWords(settings), ...machineWords(machine), ...also];
  return words.map(quoted).join(" ");
}

/** The same for `run` and `serve`, which use the machine they are started on. */
export function runCommand(verb, settings) {
  return ["edgekit", verb, settings.name, ...chosenWords(settings, NOT_RUN)].map(quoted).join(" ");
}

const NOT_RUN = new Set(["min_speed", "prompt_tokens", "window_budget", "job", "users"]);

function chosenWords({ chosen, engine }, without = new Set()) {
  const rows = Object.entries(chosen).filter(([key, value]) => value !== null && !without.has(key));
  return rows.flatMap(([key, value]) => flagWords(key, value, chosen.engine ?? engine));
}
