// The hardware page: what was found, what each engine may use of it, and every device that is known.

import { call, isPassing } from "./api.js";
import { budgetBar } from "./bar.js";
import { el, fault, oncePerFrame, refill, scrollTable } from "./dom.js";
import { engineLabel } from "./engines.js";
import { gib } from "./format.js";
import { devices, grouped, machine, machinePicker, matching } from "./machine.js";
import { route } from "./router.js";
import { COMMON, HARDWARE, MACHINE } from "./texts.js";

const NUMBERS = new Set(["memory", "usable", "bandwidth"]);
const COLUMNS = Object.entries(HARDWARE.columns).map(([name, text]) => (NUMBERS.has(name) ? { text, class: "number" } : text));
const SHOWN = 60; // rows of the table at once: it has hundreds

route("/hardware", { title: HARDWARE.title, render });

function render(root, _params, { signal }) {
  const found = el("div", { class: "found", tabIndex: -1, "aria-live": "off" });
  root.append(
    el("h1", { text: HARDWARE.title }),
    el("p", { class: "lead muted", text: HARDWARE.lead }),
    el("div", { class: "asked panel" }, machinePicker(signal)),
    found,
    deviceTable(signal),
  );
  let asked = new AbortController();
  const ask = () => {
    asked.abort(); // an answer about the machine before comes too late
    asked = new AbortController();
    return showMachine(found, AbortSignal.any([asked.signal, signal]), ask);
  };
  machine.addEventListener("change", ask, { signal });
  return ask();
}

async function showMachine(found, signal, again) {
  try {
    const answer = await call("hardware", { ...machine }, { signal });
    if (!signal.aborted) refill(found, parts(answer), found);
  } catch (error) {
    if (signal.aborted) return;
    const told = isPassing(error) ? fault(error.message, again) : [error.message];
    refill(found, [el("div", { class: "error", role: "alert" }, ...told)], found);
  }
}

function parts({ machine: told, engines, programs }) {
  return [
    section(told.what_if ? HARDWARE.whatIf(told.name) : HARDWARE.found, basics(told), deviceList(told)),
    section(HARDWARE.usable, usableTable(engines)),
    programs && section(HARDWARE.programs, bullets(programs.length ? programs.map((one) => one.told) : [HARDWARE.noPrograms])),
    told.calibration && measured(told.calibration),
    told.notes.length > 0 && section(HARDWARE.notes, bullets(told.notes)),
  ].filter(Boolean);
}

const bullets = (lines) => el("ul", { class: "notes" }, lines.map((text) => el("li", { text })));

function section(title, ...children) {
  return el("section", { class: "panel", "aria-label": title }, el("h2", { text: title }), ...children);
}

/** Names and values in two columns; what is not known is left out. */
function pairs(rows) {
  const known = rows.filter(([, value]) => value);
  const nodes = known.map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", {}, value)));
  return el("dl", { class: "pairs" }, nodes);
}

const perSecond = (n) => n && HARDWARE.perSecond(Math.round(n / 1e9));

const freeOf = (one) => HARDWARE.free(one.total_bytes, one.free_bytes);

function basics(told) {
  const { host } = told;
  const limits = host?.limits ?? [];
  const cores = told.cores && HARDWARE.cores(told.cores);
  return pairs([
    [HARDWARE.system, HARDWARE.systems[told.system] ?? told.system],
    [HARDWARE.processor, [told.processor, cores].filter(Boolean).join(", ")],
    [HARDWARE.ram, host ? freeOf(host) : HARDWARE.ramUnknown],
    [HARDWARE.bandwidth, host && perSecond(host.bandwidth_bytes_per_s)],
    [HARDWARE.measured, host?.bandwidth_because],
    [HARDWARE.swap, host?.swap_total_bytes > 0 && HARDWARE.swapSize(host.swap_total_bytes)],
    ...limits.map((one) => [HARDWARE.limit, HARDWARE.limitSize(one.name, one.limit_bytes, one.left_bytes)]),
  ]);
}

function deviceList({ devices: found, what_if: isWish }) {
  if (!found.length) return el("p", { class: "muted", text: isWish ? HARDWARE.noGpu : HARDWARE.noGpuFound });
  return el("div", { class: "device-cards" }, grouped(found).map(deviceCard));
}

function deviceCard([one, count]) {
  const users = one.users.map((user) => HARDWARE.processSize(user.name ?? HARDWARE.process(user.pid), user.used_bytes ?? 0));
  const rows = pairs([
    [HARDWARE.memory, one.unified ? HARDWARE.shared(one.total_bytes) : freeOf(one)],
    [HARDWARE.maxUse, one.limit_bytes && HARDWARE.maxUseSize(one.limit_bytes, one.limit_because)],
    [HARDWARE.bandwidth, perSecond(one.bandwidth_bytes_per_s)],
    [HARDWARE.capability, one.capability?.join(".")],
    [HARDWARE.partition, one.partition],
    [HARDWARE.usedBy, users.join(", ")],
    [HARDWARE.basis, [one.basis, one.because].filter(Boolean).join(": ")],
  ]);
  const name = [HARDWARE.vendors[one.vendor], one.name].filter(Boolean).join(" ");
  const title = el("h3", { text: HARDWARE.counted(count, name) });
  return el("div", { class: "device-card" }, title, rows);
}

function usableTable(engines) {
  const rows = Object.entries(engines).map(([name, usable]) =>
    el("tr", {}, el("th", { scope: "row", text: engineLabel(name) }), el("td", {}, usableCell(usable))),
  );
  const head = [COMMON.engine, HARDWARE.usableBy].map((text) => el("th", { scope: "col", text }));
  return el("table", { class: "usable" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
}

function usableCell(usable) {
  if (usable.error) return el("p", { class: "muted", text: usable.error.message });
  return grouped(usable.budgets).map(([one, count]) => {
    const name = HARDWARE.counted(count, one.name);
    const why = el("p", { class: "muted small", text: one.told });
    return el("div", { class: "budget-row" }, budgetBar({ ...one, name }), why);
  });
}

/** What calibrate and verify --load found on this machine. */
function measured({ host, engines, differences }) {
  const speeds = engines.map((one) => {
    const { decode_tokens_per_s: speed, label: model } = one.pace ?? {};
    return HARDWARE.engineMeasured({ ...one, overhead: one.overhead_bytes, speed, label: model });
  });
  const outside = differences.map((one) => HARDWARE.outOfBounds({ ...one, predicted: one.predicted_bytes, measured: one.measured_bytes }));
  const lines = [host?.date && HARDWARE.measuredOn(host.date), ...speeds, ...outside].filter(Boolean);
  return lines.length > 0 && section(HARDWARE.measuredHere, bullets(lines));
}

/** The devices that can be asked about, to search in. */
function deviceTable(signal) {
  const find = el("input", { id: "device-search", type: "search", autocomplete: "off", maxLength: 80 });
  find.placeholder = HARDWARE.findExample;
  const count = el("p", { class: "muted small", role: "status", text: HARDWARE.loading });
  const body = el("tbody");
  const draw = oncePerFrame(async () => {
    try {
      const found = matching(await devices(), find.value);
      if (signal.aborted) return;
      body.replaceChildren(...found.slice(0, SHOWN).map(deviceRow));
      count.textContent = MACHINE.shown(found.length, SHOWN);
    } catch (error) {
      count.textContent = error.message;
    }
  });
  find.addEventListener("input", draw);
  draw();
  const field = el("div", { class: "field" }, el("label", { htmlFor: "device-search", text: HARDWARE.find }), find);
  return section(HARDWARE.devicesTitle, field, count, scrollTable(HARDWARE.devices, "devices", COLUMNS, body));
}

function deviceRow(row) {
  const choose = () => {
    machine.set({ device: [row.name] });
    scrollTo(0, 0);
    document.querySelector(".machine > summary")?.focus({ preventScroll: true });
  };
  const ask = el("button", { type: "button", class: "quiet ask", onclick: choose, text: HARDWARE.use, "aria-label": HARDWARE.useNamed(row.name) });
  return el(
    "tr",
    {},
    el("th", { scope: "row", text: row.name }),
    el("td", { text: [HARDWARE.vendors[row.vendor], HARDWARE.kinds[row.kind] ?? row.kind].filter(Boolean).join(" ") }),
    el("td", { class: "number", text: gib(row.memory_bytes) }),
    el("td", { class: "number", text: gib(row.usable_bytes) }),
    el("td", { class: "number", text: perSecond(row.bandwidth_bytes_per_s) ?? HARDWARE.unknown }),
    el("td", { text: row.released ?? HARDWARE.unknown }),
    el("td", {}, ask),
  );
}
