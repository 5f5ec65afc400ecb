// The changes that a check suggests, as a list; each has a button if the page can apply it.

import { el } from "./dom.js";
import { devices } from "./machine.js";
import { MODEL } from "./texts.js";

/** The machine with another device. A GPU keeps the given RAM; any other device has its own. */
async function withDevice(name, machine) {
  const known = await devices().catch(() => []);
  const isCard = known.find((row) => row.name === name.replace(/^\d+x /, ""))?.kind === "gpu";
  return { device: [name], ram: isCard ? machine.ram : "", cpu: isCard ? machine.cpu : "" };
}

/** Whether the RAM can be changed: not for this computer, nor for a Mac, a phone or another complete machine. */
function hasRamOfItsOwn(machine, { devices: found }) {
  const isWhole = found.some((one) => one.unified) || (machine.device.length > 0 && !found.length);
  return !machine.isThis && !isWhole;
}

const withRam = ({ device, vram, cpu }, ram) => ({ device, vram, cpu, ram });

/** What to apply: {flags}, {machine: async () => machine}, or null if the page cannot apply it. */
function applied({ device, ram, ...flags }, machine, found) {
  if (device) return { machine: () => withDevice(device, machine) };
  if (ram) return hasRamOfItsOwn(machine, found) ? { machine: async () => withRam(machine, ram) } : null;
  return Object.keys(flags).length ? { flags } : null;
}

/** The list, or null if there are no changes. Calls onapply(what to apply, event). */
export function changeList(check, machine, onapply) {
  const items = check.changes.map((change) => {
    const wanted = applied(change.flags, machine, check.machine);
    const apply = (event) => onapply(wanted, event);
    const label = MODEL.applyNamed(change.told);
    const button = wanted && el("button", { type: "button", text: MODEL.apply, "aria-label": label, onclick: apply });
    return el("li", {}, el("span", { text: change.told }), button);
  });
  return items.length ? el("ul", { class: "changes" }, ...items) : null;
}

/** The heading of the list. */
export function changesTitle(check) {
  return check.status === "failed" ? MODEL.changesFit : MODEL.changesMore;
}
