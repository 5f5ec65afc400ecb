// The engines, as the server describes them: names, settings, cache types. No script compares with the name of one.

import { call, isPassing } from "./api.js";
import { COMMON, VERDICTS } from "./texts.js";

const RETRY_MS = 1000;

/** Every page needs them, so a busy server is asked again. */
async function load() {
  try {
    return await call("engines");
  } catch (error) {
    if (!isPassing(error)) throw error;
    await new Promise((done) => setTimeout(done, RETRY_MS));
    return load();
  }
}

const { engines } = await load();
const BY_NAME = new Map(engines.map((engine) => [engine.name, engine]));

/** The description of an engine; null if the server does not have it. */
export const engineNamed = (name) => BY_NAME.get(name) ?? null;

export const engineLabel = (name) => BY_NAME.get(name)?.label ?? name;

/** The engines that the catalog is checked for. */
export const COMPARED = engines.filter((one) => one.is_compared).map((one) => one.name);

/** Menu entries: [value, name]. The first leaves the choice to EdgeKit. */
export const ENGINES = [["", COMMON.auto], ...engines.map(({ name, label }) => [name, label])];

/** All controls of all engines. */
export const CONTROL_KEYS = engines.flatMap((one) => one.controls.map((row) => row.key));

/** The keys of the flags in these groups ("weights", "cache", "placement" ...), of all engines. */
export const flagsAbout = (...groups) =>
  new Set(engines.flatMap((one) => groups.flatMap((group) => one.groups[group])));

/** Flag -> the flag that it replaces. */
export const INSTEAD_OF = Object.assign({}, ...engines.map((one) => one.instead_of));

/** "llama.cpp 0.5.0", "mlx-lm 0.32.2 (MLX 0.32.4)": a version that names its program says it all. */
export function engineWords({ name, version }) {
  if (!version) return engineLabel(name);
  return /^[a-z]/i.test(version) ? version : `${engineLabel(name)} ${version}`;
}

export const verdictWord = (status, name) => BY_NAME.get(name)?.verdicts[status] ?? VERDICTS[status] ?? status;

/** Every word that an engine uses for a verdict. */
export const verdictWords = (
  status,
) => [...new Set([null, ...BY_NAME.keys()].map((name) => verdictWord(status, name)))];

// The engine with the most programs first.
const byPrograms = [...engines].sort((a, b) => b.programs.length - a.programs.length);
const hasTab = (engine, label) => engine.programs.some((program) => program.label === label);
const TAB_LABELS = [...new Set(byPrograms.flatMap((one) => one.programs.map(({ label }) => label)))];

/** The tabs of the commands, {label, engines}: well-known programs, and the engines that have one. */
export const PROGRAM_TABS = TAB_LABELS.map((label) => ({
  label,
  engines: byPrograms.filter((one) => hasTab(one, label)).map((one) => one.name),
}));

/** The tab of an engine's command; the engine's own tab if its program has none. */
export function tabOf(program, name) {
  const engine = BY_NAME.get(name);
  return engine?.programs.find((one) => one.name === program)?.label ?? engine?.programs[0]?.label ?? null;
}

/** A setting as command-line arguments: ["-ctk", "q8_0"]. */
export function flagWords(key, value, name) {
  const written = BY_NAME.get(name)?.flag_names[key];
  if (typeof written === "object") return [written[String(value)]].filter(Boolean);
  return [written ?? `--${key.replaceAll("_", "-")}`, String(value)];
}
