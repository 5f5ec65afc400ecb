// The machine page: what this computer or another one has, what engines may use of it, and what more would give.

import { call, isPassing } from "./api.js";
import { budgetBar } from "./bar.js";
import { el, fault, oncePerFrame, refill, scrollTable } from "./dom.js";
import { engineLabel } from "./engines.js";
import { boxed, gib } from "./format.js";
import { devices, grouped, machine, matching } from "./machine.js";
import { MachineBuilder } from "./machine_builder.js";
import { route } from "./router.js";
import { BARS, HARDWARE, MACHINE } from "./texts.js";
import { Upgrades } from "./upgrades.js";

const NUMBERS = new Set(["memory", "usable", "bandwidth"]);
const COLUMNS = Object.entries(HARDWARE.columns).map((
  [name, text],
) => (NUMBERS.has(name) ? { text, class: "number" } : text));
const SHOWN = 60; // rows of the table at once: it has hundreds
const GIB = 1024 ** 3;

route("/hardware", { title: HARDWARE.title, render });

function render(root, _params, { signal }) {
  const line = el("p", { class: "machine-line", "aria-live": "polite" });
  const say = (text) => line.replaceChildren(el("span", { class: "muted", text }));
  say(HARDWARE.loading);
  const cards = el("div", { class: "machine-cards", tabIndex: -1 }, skeletonCard(), skeletonCard(), skeletonCard());
  const found = el("div", { class: "machine-found" });
  let ownRam = ""; // of this computer: what a first card is put next to
  const builder = new MachineBuilder(signal, () => ownRam);
  const upgrades = new Upgrades(signal);
  root.append(
    el("h1", { tabIndex: -1, text: HARDWARE.title }),
    line,
    cards,
    el("div", { class: "machine-grid" }, builder.node, upgrades.node),
    found,
    deviceTable(signal),
  );
  let asked = new AbortController();
  const ask = async () => {
    asked.abort(); // an answer about the machine before comes too late
    asked = new AbortController();
    const current = AbortSignal.any([asked.signal, signal]);
    if (!found.firstChild) say(HARDWARE.loading); // also after an unknown machine
    if (machine.isThis) upgrades.ask();
    else upgrades.wait(); // until the server knows the machine
    try {
      const { device, ram, vram, cpu } = machine;
      const answer = await call("hardware", { device, ram, vram, cpu }, { signal: current });
      if (current.aborted) return;
      if (!machine.isThis) upgrades.ask();
      builder.spell(answer.machine.name);
      if (!answer.machine.what_if && answer.machine.host) {
        ownRam = boxed(answer.machine.host.total_bytes).replace(/ GB$/, "G");
      }
      line.replaceChildren(...lineOf(answer.machine));
      refill(cards, [cardsOf(answer)], cards);
      found.replaceChildren(...partsOf(answer));
    } catch (error) {
      if (current.aborted) return;
      const told = isPassing(error) ? fault(error.message, ask) : [error.message];
      say(HARDWARE.unknownMachine);
      found.replaceChildren();
      if (!machine.isThis) upgrades.skip();
      refill(cards, [el("div", { class: "error", role: "alert" }, ...told)], cards);
    }
  };
  machine.addEventListener("change", ask, { signal });
  return ask();
}

const skeletonCard = () => el("div", { class: "panel machine-card waiting", "aria-hidden": "true" });

/** "This computer: RTX 4090 · 24 GB · 64 GB RAM", as it is written on the boxes. */
function lineOf({ what_if: isWish, label }) {
  const lead = isWish ? HARDWARE.line.whatIf : HARDWARE.line.this;
  return [el("span", { class: "muted", text: `${lead}: ` }), el("strong", { text: label })];
}

/** The cards in one region, so that it is found by its name. */
function cardsOf({ machine: told, engines }) {
  const name = told.what_if ? HARDWARE.whatIf(told.name) : HARDWARE.found;
  const [engine, first] = Object.entries(engines).find(([, one]) => one.budgets?.length) ?? ["", {}];
  const label = engine && HARDWARE.forEngine(engineLabel(engine));
  const budgets = (first.budgets ?? []).map((one) => ({ ...one, name: label }));
  const gpus = grouped(told.devices).map(([one, count]) => gpuCard(one, count, budgets));
  const isUnified = told.devices.some((one) => one.unified);
  const all = [
    ...(gpus.length ? gpus : [bareCard(HARDWARE.noGpu, HARDWARE.noGpuHint)]),
    isUnified ? bareCard(HARDWARE.ram, HARDWARE.ramShared) : ramCard(told.host, budgets),
    processorCard(told),
  ];
  return el("section", { class: "machine-card-list", "aria-label": name }, all);
}

function card(title, figures, ...children) {
  const rows = figures.filter(Boolean).map(([value, unit]) =>
    el("p", { class: "machine-figure" }, el("strong", { text: value }), " ", unit)
  );
  return el("div", { class: "panel machine-card" }, el("h2", { text: title }), rows, ...children);
}

const bareCard = (title, hint) => card(title, [], el("p", { class: "muted", text: hint }));

const perSecond = (n) => n && HARDWARE.perSecond(Math.round(n / 1e9));

const bandwidthOf = (
  one,
) => (one.bandwidth_bytes_per_s ? [perSecond(one.bandwidth_bytes_per_s), HARDWARE.bandwidth] : null);

/** Names and values that are for those who look closer. */
function details(rows) {
  const known = rows.filter(([, value]) => value);
  if (!known.length) return null;
  const nodes = known.map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", {}, value)));
  return el(
    "details",
    { class: "unfold" },
    el("summary", { text: HARDWARE.more }),
    el("dl", { class: "pairs" }, nodes),
  );
}

function gpuCard(one, count, budgets) {
  const title = [HARDWARE.vendors[one.vendor], one.name].filter(Boolean).join(" ");
  const budget = budgets.find((row) =>
    row.pools.some((pool) => pool.startsWith("device")) && row.total_bytes === one.total_bytes
  );
  const users = one.users.map((user) =>
    HARDWARE.processSize(user.name ?? HARDWARE.process(user.pid), user.used_bytes ?? 0)
  );
  const kind = [one.unified ? HARDWARE.unified : HARDWARE.vram, count > 1 && HARDWARE.each].filter(Boolean).join(" ");
  return card(
    HARDWARE.counted(count, title),
    [[boxed(one.total_bytes), kind], bandwidthOf(one)],
    budget && budgetBar(budget),
    details([
      [HARDWARE.maxUse, one.limit_bytes && HARDWARE.maxUseSize(one.limit_bytes, one.limit_because)],
      [HARDWARE.capability, one.capability?.join(".")],
      [HARDWARE.partition, one.partition],
      [HARDWARE.usedBy, users.join(", ")],
      [HARDWARE.basis, [one.basis, one.because].filter(Boolean).join(": ")],
    ]),
  );
}

function ramCard(host, budgets) {
  if (!host) {
    return card(HARDWARE.ram, [[HARDWARE.ramUnknown, ""]], el("p", { class: "muted", text: HARDWARE.ramHint }));
  }
  const budget = budgets.find((row) => row.pools.includes("host"));
  const limits = host.limits.map((
    one,
  ) => [HARDWARE.limit, HARDWARE.limitSize(one.name, one.limit_bytes, one.left_bytes)]);
  return card(
    HARDWARE.ram,
    [[boxed(host.total_bytes), HARDWARE.ram], bandwidthOf(host) ?? ["", HARDWARE.bandwidthUnknown]],
    budgetBar(budget ?? hostBudget(host)),
    details([
      [HARDWARE.measured, host.bandwidth_because],
      [HARDWARE.swap, host.swap_total_bytes > 0 && HARDWARE.swapSize(host.swap_total_bytes)],
      ...limits,
    ]),
  );
}

/** RAM that no engine has a budget for: all that is free. */
const hostBudget = (host) => ({
  name: HARDWARE.ram,
  total_bytes: host.total_bytes,
  free_bytes: host.usable_bytes,
  available_bytes: host.usable_bytes,
  reserve_bytes: 0,
  told: "",
});

function processorCard({ processor, cores, system }) {
  const facts = [cores && HARDWARE.cores(cores), HARDWARE.systems[system]].filter(Boolean).join(MACHINE.separator);
  return card(
    HARDWARE.cpu,
    [],
    el("p", { class: "machine-name-large", text: processor ?? HARDWARE.cpuUnknown }),
    el("p", { class: "muted", text: processor ? facts : HARDWARE.cpuHint }),
  );
}

function partsOf({ machine: told, engines, programs }) {
  return [
    section(HARDWARE.usable, el("p", { class: "small muted", text: HARDWARE.usableHint }), usable(engines)),
    programs && section(HARDWARE.programs, programList(programs)),
    told.calibration && measured(told.calibration),
    told.notes.length > 0 && section(HARDWARE.notes, bullets(told.notes)),
  ].filter(Boolean);
}

const bullets = (lines) => el("ul", { class: "notes" }, lines.map((text) => el("li", { text })));

function section(title, ...children) {
  return el("section", { class: "panel", "aria-label": title }, el("h2", { text: title }), ...children);
}

/** Each engine with what it may use; those that cannot use this machine last, in a line each. */
function usable(engines) {
  const rows = Object.entries(engines);
  const able = rows.filter(([, one]) => !one.error);
  const all = able.flatMap(([, one]) => one.budgets);
  const unable = rows.filter(([, one]) => one.error);
  return [
    el(
      "div",
      { class: "usable-engines" },
      able.map(([name, one]) => el("div", {}, el("h3", { text: engineLabel(name) }), budgetsOf(one))),
    ),
    usableLegend(all),
    unable.length > 0 &&
    el("ul", { class: "unable" }, unable.map(([, one]) => el("li", { text: withoutFlag(one.error.message) }))),
  ].filter(Boolean);
}

/** What the colours of these bars mean. */
function usableLegend(budgets) {
  const rows = [
    ["c-usable", BARS.limit],
    budgets.some((one) => one.free_bytes > one.available_bytes) && ["reserve", BARS.reserve],
    budgets.some((one) => one.total_bytes > one.free_bytes) && ["others", BARS.inUse],
  ];
  const swatch = (name) => el("span", { class: `swatch ${name}`, "aria-hidden": "true" });
  return el("ul", { class: "legend" }, rows.filter(Boolean).map(([name, text]) => el("li", {}, swatch(name), text)));
}

/** An engine's reason without the flag of the command line that ends it. */
const withoutFlag = (message) => message.replace(/ \([^()]*--[^()]*\)$/, "");

function budgetsOf({ budgets }) {
  return grouped(budgets).map(([one, count]) => {
    const name = HARDWARE.counted(count, one.name);
    return el(
      "div",
      { class: "budget-row" },
      budgetBar({ ...one, name }),
      el("p", { class: "muted small", text: one.told }),
    );
  });
}

/** The programs that were found; without any, the command that installs one. */
function programList(programs) {
  if (!programs.length) {
    return [el("p", { text: HARDWARE.noPrograms }), el("pre", { tabIndex: 0, text: HARDWARE.install })];
  }
  const rows = programs.map((one) =>
    el(
      "li",
      {},
      el("strong", { text: [one.program, one.version].filter(Boolean).join(" ") }),
      el("span", { text: one.problem ?? HARDWARE.programWith(engineLabel(one.engine), one.backends) }),
      el("small", { class: "muted", text: one.told }),
    )
  );
  return el("ul", { class: "programs" }, rows);
}

/** What calibrate and verify --load found on this machine. */
function measured({ host, engines, differences }) {
  const speeds = engines.map((one) => {
    const { decode_tokens_per_s: speed, label: model } = one.pace ?? {};
    return HARDWARE.engineMeasured({ ...one, overhead: one.overhead_bytes, speed, label: model });
  });
  const outside = differences.map((one) =>
    HARDWARE.outOfBounds({ ...one, predicted: one.predicted_bytes, measured: one.measured_bytes })
  );
  const lines = [host?.date && HARDWARE.measuredOn(host.date), ...speeds, ...outside].filter(Boolean);
  return lines.length > 0 && section(HARDWARE.measuredHere, bullets(lines));
}

/** The devices that can be asked about, to search in; drawn when it is opened. */
function deviceTable(signal) {
  const find = el("input", { id: "device-search", type: "search", autocomplete: "off", maxLength: 80 });
  find.placeholder = HARDWARE.findExample;
  const count = el("p", { class: "muted small", role: "status", text: HARDWARE.loadingList });
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
  const field = el("div", { class: "field" }, el("label", { htmlFor: "device-search", text: HARDWARE.find }), find);
  const fold = el(
    "details",
    { class: "panel fold device-fold", ontoggle: () => fold.open && draw() },
    el("summary", {}, el("h2", { text: HARDWARE.devicesTitle })),
    field,
    count,
    scrollTable(HARDWARE.devices, "devices", COLUMNS, body),
  );
  return fold;
}

function deviceRow(row) {
  const choose = () => {
    const ram = row.kind === "gpu" ? machine.ram : "";
    machine.set({ device: [row.name], ram });
    scrollTo(0, 0);
    document.querySelector("h1")?.focus({ preventScroll: true });
  };
  const ask = el("button", {
    type: "button",
    class: "quiet ask",
    onclick: choose,
    text: HARDWARE.use,
    "aria-label": HARDWARE.useNamed(row.name),
  });
  return el(
    "tr",
    {},
    el("th", { scope: "row", text: row.name }),
    el("td", { text: [HARDWARE.vendors[row.vendor], HARDWARE.kinds[row.kind] ?? row.kind].filter(Boolean).join(" ") }),
    el("td", { class: "number", text: row.memory_bytes < GIB ? gib(row.memory_bytes) : boxed(row.memory_bytes) }),
    el("td", { class: "number", text: gib(row.usable_bytes) }),
    el("td", { class: "number", text: perSecond(row.bandwidth_bytes_per_s) ?? HARDWARE.unknown }),
    el("td", { text: row.released ?? HARDWARE.unknown }),
    el("td", {}, ask),
  );
}
