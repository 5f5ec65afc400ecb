// The hardware page: what was found, what each engine may use of it, and every device that is known.

import { call, isPassing } from "./api.js";
import { budgetBar } from "./bar.js";
import { el, fault, oncePerFrame, refill, scrollTable } from "./dom.js";
import { ENGINE_NAMES } from "./engines.js";
import { bytes, rate } from "./format.js";
import { devices, grouped, machine, machinePicker, matching, shownLine } from "./machine.js";
import { route } from "./router.js";

const SYSTEMS = { linux: "Linux", macos: "macOS", windows: "Windows" };
const KINDS = { gpu: "card", mac: "Mac", phone: "phone or tablet", board: "board", apu: "processor with a GPU" };
const VENDORS = { nvidia: "NVIDIA", amd: "AMD", intel: "Intel", apple: "Apple" };
const LEAD =
  "What there is, and what each engine may use of it: what is free, less a reserve. " +
  "Every verdict is a share of these figures.";
const COLUMNS = [
  "Device",
  "Kind",
  { text: "Memory", class: "number" },
  { text: "Usable", class: "number" },
  { text: "Read at", class: "number" },
  "Since",
  "What if",
];
const SHOWN = 60; // rows of the table at once: it has hundreds

route("/hardware", { title: "Hardware", render });

function render(root, _params, { signal }) {
  const found = el("div", { class: "found", tabIndex: -1, "aria-live": "off" });
  root.append(
    el("h1", { text: "Hardware" }),
    el("p", { class: "lead muted", text: LEAD }),
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

function parts({ machine: told, engines }) {
  return [
    section(told.what_if ? `What if it were: ${told.name}` : "What was found", basics(told), deviceList(told)),
    section("What is usable", usableTable(engines)),
    told.calibration && measured(told.calibration),
    told.notes.length > 0 && section("Notes", bullets(told.notes)),
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

const perSecond = (n) => n && `${Math.round(n / 1e9).toLocaleString("en-US")} GB/s`;

const freeOf = (one) => `${bytes(one.total_bytes)}, ${bytes(one.free_bytes)} free`;

function basics(told) {
  const { host } = told;
  const limits = host?.limits ?? [];
  const cores = told.cores && `${told.cores} cores`;
  return pairs([
    ["System", SYSTEMS[told.system] ?? told.system],
    ["Processor", [told.processor, cores].filter(Boolean).join(", ")],
    ["Memory", host ? freeOf(host) : "not known: RAM says how much there is"],
    ["Read at", host && perSecond(host.bandwidth_bytes_per_s)],
    ["Measured", host?.bandwidth_because],
    ["Swap", host?.swap_total_bytes > 0 && `${bytes(host.swap_total_bytes)}, never counted`],
    ...limits.map((one) => ["Limit", `${one.name}: ${bytes(one.limit_bytes)}, ${bytes(one.left_bytes)} left`]),
  ]);
}

function deviceList({ devices: found, what_if: isWish }) {
  const none = `${isWish ? "No GPU" : "No GPU was found"}: the processor is judged alone.`;
  if (!found.length) return el("p", { class: "muted", text: none });
  return el("div", { class: "device-cards" }, grouped(found).map(deviceCard));
}

function deviceCard([one, count]) {
  const users = one.users.map((user) => `${user.name ?? `process ${user.pid}`} ${bytes(user.used_bytes ?? 0)}`);
  const rows = pairs([
    ["Memory", one.unified ? `shares ${bytes(one.total_bytes)} with the processor` : freeOf(one)],
    ["May take", one.limit_bytes && `${bytes(one.limit_bytes)}: ${one.limit_because ?? "its limit"}`],
    ["Read at", perSecond(one.bandwidth_bytes_per_s)],
    ["Compute capability", one.capability?.join(".")],
    ["Slice", one.partition],
    ["In use by", users.join(", ")],
    ["Known", [one.basis, one.because].filter(Boolean).join(": ")],
  ]);
  const title = el("h3", { text: [count > 1 && `${count}x`, VENDORS[one.vendor], one.name].filter(Boolean).join(" ") });
  return el("div", { class: "device-card" }, title, rows);
}

function usableTable(engines) {
  const rows = Object.entries(engines).map(([name, usable]) =>
    el("tr", {}, el("th", { scope: "row", text: ENGINE_NAMES[name] ?? name }), el("td", {}, usableCell(usable))),
  );
  const head = ["Engine", "May use"].map((text) => el("th", { scope: "col", text }));
  return el("table", { class: "usable" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
}

/** "23.50 GiB free less 1 GiB for everything else", as the command line says it. */
function reserveWords({ free_bytes: free, total_bytes: total, reserve_bytes: reserve, because, blocked }) {
  if (blocked) return `${bytes(free)} of ${bytes(total)} free: ${blocked}`;
  if (!reserve) return because || `${bytes(free)} free`;
  const amount = /^\d/.test(because) ? "" : `${bytes(reserve)} `; // some reasons open with the amount themselves
  return `${bytes(free)} free less ${amount}${because}`;
}

function usableCell(usable) {
  if (usable.error) return el("p", { class: "muted", text: usable.error.message });
  return grouped(usable.budgets).map(([one, count]) => {
    const name = count > 1 ? `each of ${count} ${one.name}` : one.name;
    const why = el("p", { class: "muted small", text: reserveWords(one) });
    return el("div", { class: "budget-row" }, budgetBar({ ...one, name }), why);
  });
}

/** What calibrate and verify --load found on this machine. */
function measured({ host, engines, differences }) {
  const speeds = engines.map((one) => {
    const held = one.overhead_bytes === null ? "" : `: ${bytes(one.overhead_bytes)} beside its bill`;
    const pace = one.pace ? `, ${rate([one.pace.decode_tokens_per_s, one.pace.decode_tokens_per_s])} with ${one.pace.label}` : "";
    return `${one.engine} ${one.version} on ${one.device}${held}${pace}, ${one.date}`;
  });
  const outside = differences.map((one) => {
    const found = `${bytes(one.predicted_bytes)} predicted, ${bytes(one.measured_bytes)}`;
    return `outside its bounds: ${one.label}: ${one.part} ${found} in ${one.engine} ${one.version}, ${one.date}`;
  });
  const lines = [host?.date && `the machine was measured on ${host.date}`, ...speeds, ...outside].filter(Boolean);
  return lines.length > 0 && section("Measured here", bullets(lines));
}

/** The devices that can be asked about, to search in. */
function deviceTable(signal) {
  const find = el("input", { id: "device-search", type: "search", autocomplete: "off", maxLength: 80 });
  find.placeholder = "RTX, M4, phone, AMD ...";
  const count = el("p", { class: "muted small", role: "status", text: "Reading the table ..." });
  const body = el("tbody");
  const draw = oncePerFrame(async () => {
    try {
      const found = matching(await devices(), find.value);
      if (signal.aborted) return;
      body.replaceChildren(...found.slice(0, SHOWN).map(deviceRow));
      count.textContent = shownLine(found.length, SHOWN);
    } catch (error) {
      count.textContent = error.message;
    }
  });
  find.addEventListener("input", draw);
  draw();
  const field = el("div", { class: "field" }, el("label", { htmlFor: "device-search", text: "Find a device" }), find);
  return section("Devices to ask about", field, count, scrollTable("Devices", "devices", COLUMNS, body));
}

function deviceRow(row) {
  const choose = () => {
    machine.set({ device: [row.name] });
    scrollTo(0, 0);
    document.querySelector(".machine > summary")?.focus({ preventScroll: true });
  };
  const ask = el("button", { type: "button", class: "quiet ask", onclick: choose, text: "Ask" });
  ask.setAttribute("aria-label", `Ask about ${row.name}`);
  return el(
    "tr",
    {},
    el("th", { scope: "row", text: row.name }),
    el("td", { text: [VENDORS[row.vendor], KINDS[row.kind] ?? row.kind].filter(Boolean).join(" ") }),
    el("td", { class: "number", text: bytes(row.memory_bytes) }),
    el("td", { class: "number", text: bytes(row.usable_bytes) }),
    el("td", { class: "number", text: perSecond(row.bandwidth_bytes_per_s) ?? "-" }),
    el("td", { text: row.released ?? "-" }),
    el("td", {}, ask),
  );
}
