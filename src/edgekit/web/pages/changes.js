// What a check says would help -> a list, each with a button that does it where the page can.

import { cacheFlags } from "./cache_names.js";
import { el } from "./dom.js";
import { devices } from "./machine.js";
import { MODEL } from "./texts.js";

function weights(value, engine) {
  return engine === "mlx" ? { quantize: `q${parseInt(value, 10)}` } : { mix: value };
}

function context(value, _engine, told) {
  const least = /--min-context (\d+)/.exec(told);
  return { context: value, ...(least ? { min_context: least[1] } : {}) };
}

const FLAGS = { context, cache: cacheFlags, weights, engine: (value) => ({ engine: value }) };

/** "446.0 GiB" -> "446.0G", as a machine is told its memory. */
const gib = (text) => `${parseFloat(text)}G`;

/** A wished-for device: a card stands beside the memory that was said, anything else has its own. */
async function withDevice(name, machine) {
  const known = await devices().catch(() => []);
  const isCard = known.find((row) => row.name === name.replace(/^\d+x /, ""))?.kind === "gpu";
  return { device: [name], ram: isCard ? machine.ram : "" };
}

/** Whether the memory of the processor can be said: not of this machine, nor of a device that is a whole one. */
function hasRamOfItsOwn(machine, { devices: found }) {
  const isWhole = found.some((one) => one.unified) || (machine.device.length > 0 && !found.length);
  return !machine.isThis && !isWhole;
}

/** What gives the machine that a change asks for; null where the page cannot ask for one. */
function machineFor(change, machine, found) {
  if (change.kind === "device") return () => withDevice(change.value, machine);
  const needed = { placement: /^([\d.]+) GiB of free RAM/.exec(change.told)?.[1], memory: change.value }[change.kind];
  if (!needed || !hasRamOfItsOwn(machine, found)) return null;
  const { device, vram } = machine;
  return async () => ({ device, vram, ram: gib(needed) });
}

/** onapply({flags} or {machine: async () => machine}, event). */
export function changeList(check, machine, onapply) {
  const items = check.changes.map((change) => {
    const flags = FLAGS[change.kind]?.(change.value, check.engine.name, change.told);
    const wished = flags ? null : machineFor(change, machine, check.machine);
    const apply = (event) => onapply(flags ? { flags } : { machine: wished }, event);
    const button = (flags || wished) && el("button", { type: "button", text: MODEL.apply, "aria-label": MODEL.applyNamed(change.told), onclick: apply });
    return el("li", {}, el("span", { text: change.told }), button);
  });
  return items.length ? el("ul", { class: "changes" }, ...items) : null;
}

/** What stands above the list. */
export function changesTitle(check) {
  return check.status === "failed" ? MODEL.changesFit : MODEL.changesMore;
}
