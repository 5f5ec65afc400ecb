// The home page: the most used models as cards, judged for the chosen machine.

import { call, events, query } from "./api.js";
import { legend } from "./bar.js";
import { makeCard } from "./card.js";
import { announce, el, fault, oncePerFrame } from "./dom.js";
import { DEFAULTS, isFiltered, isFitting, matcher, queryOf, sorted, stateOf, textOf } from "./filters.js";
import { controls, engineChoice } from "./filters.js";
import { machine, machineName, machinePicker } from "./machine.js";
import { replaceQuery, route, show } from "./router.js";
import { COMMON, HOME, SHELL } from "./texts.js";

const MOST_COMPARED = 3;
const JUDGED_PER_FRAME = 16; // verdicts drawn in one frame, so that each stays short
const REORDER_MS = 400; // while verdicts come in, cards change places no more often
const compared = new Set(); // kept while other pages are looked at
let last = { asked: "", cards: new Map() }; // verdicts of the page before: who comes back sees them at once

route("/", { title: SHELL.pages.home, render });

async function render(root, params, { signal }) {
  const page = newPage(stateOf(params), signal);
  drawFrame(root, page);
  let catalog;
  try {
    catalog = await call("index", { checked: true }, { signal });
  } catch (error) {
    if (error.name === "AbortError") return;
    page.count.textContent = "";
    tellFault(page, error.message, () => show());
    return;
  }
  page.lead.textContent = HOME.lead(catalog.models.length, catalog.count);
  for (const model of catalog.models) addItem(page, model);
  page.isChanged = true;
  page.filters.replaceChildren(controls(page.state, catalog.models, (name) => changed(page, name)));
  machine.addEventListener("change", () => judgeAll(page), { signal });
  judgeAll(page);
}

function newPage(state, signal) {
  const page = { state, signal, items: new Map(), waiting: [], order: "", reordered: 0 };
  Object.assign(page, { isDone: false, isChanged: false });
  page.close = () => {};
  page.draw = oncePerFrame(() => !signal.aborted && pass(page));
  page.tell = afterwards(() => !signal.aborted && announce(page.count.textContent));
  signal.addEventListener("abort", () => page.close());
  return page;
}

/** Says it once things are quiet, not at every key. */
function afterwards(f) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(f, 700);
  };
}

function drawFrame(root, page) {
  page.filters = el("div", { class: "filters-room" });
  page.count = el("p", { class: "count", tabIndex: -1, text: HOME.loading });
  page.fault = el("div", { class: "error", role: "alert", hidden: true });
  page.empty = el("div", { class: "panel empty", hidden: true });
  page.list = el("ul", { class: "cards", "aria-label": HOME.models });
  page.tray = el("div", { class: "tray", role: "region", "aria-label": HOME.compare, hidden: true });
  page.lead = el("p", { class: "lead muted", text: HOME.lead(0) });
  root.append(
    el("h1", { text: HOME.title }),
    page.lead,
    el("div", { class: "asked panel" }, machinePicker(page.signal), engineChoice(page.state, (name) => changed(page, name))),
    page.filters,
    page.fault,
    el("div", { class: "count-row" }, page.count, key()),
    page.empty,
    page.list,
    page.tray,
  );
}

/** What the colours and lines of the bars mean. */
function key() {
  return el("details", { class: "key" }, el("summary", { text: HOME.legend }), legend([]));
}

function addItem(page, model) {
  const item = { model, card: null, text: textOf(model), isShown: true };
  Object.assign(item, makeCard(model, (isOn) => compare(page, model.id, isOn)));
  item.box.checked = compared.has(model.id);
  page.items.set(model.id, item);
}

/** Something was chosen: into the address, and onto the page. */
function changed(page, name) {
  replaceQuery(new URLSearchParams(queryOf(page.state)));
  if (name === "engine") return judgeAll(page);
  if (name === "sort") Object.assign(page, { isChanged: true, reordered: 0 });
  page.draw();
  page.tell();
}

/** All verdicts anew, for the machine and the engine that are chosen now. */
function judgeAll(page) {
  page.close();
  Object.assign(page, { isDone: false, waiting: [], reordered: 0, isChanged: true });
  page.fault.hidden = true;
  page.list.setAttribute("aria-busy", "true");
  const fields = { ...machine, engine: page.state.engine };
  const asked = query(fields);
  if (last.asked !== asked) last = { asked, cards: new Map() };
  for (const item of page.items.values()) {
    item.card = null;
    item.link.href = modelLink(page, item.model.id, {});
    const before = last.cards.get(item.model.id);
    if (before) judge(page, item, before);
    else item.wait(HOME.checking);
  }
  page.draw();
  page.close = events("cards/events", fields, {
    card: (card) => (page.waiting.push(card), page.draw()),
    done: () => finish(page),
    failed: ({ error }) => stop(page, error),
    error: (error) => stop(page, error),
    end: () => page.isDone || stop(page, new Error(HOME.stopped)),
  });
}

function judge(page, item, card) {
  last.cards.set(card.id, card);
  item.card = card;
  item.judge(card);
  item.link.href = modelLink(page, card.id, card.flags);
}

/** The model page begins with what the card says. */
function modelLink(page, id, flags) {
  return `/model${query({ ref: `catalog:${id}`, engine: page.state.engine, ...flags, ...machine })}`;
}

function finish(page) {
  page.isDone = true;
  page.reordered = 0;
  page.draw();
  page.tell();
}

function stop(page, error) {
  for (const item of page.items.values()) if (!item.card) item.wait(HOME.notChecked);
  tellFault(page, error.message, () => {
    page.count.focus({ preventScroll: true }); // the button goes; the counts say what comes of it
    judgeAll(page);
  });
  finish(page);
}

/** Who has tried again stays at the button. */
function tellFault(page, message, retry) {
  page.fault.replaceChildren(...fault(message, retry));
  page.fault.hidden = false;
  if (document.activeElement === page.count) page.fault.querySelector("button").focus({ preventScroll: true });
}

/** The one change of the document in a frame: verdicts, which cards, their order, the counts. */
function pass(page) {
  for (const card of page.waiting.splice(0, JUDGED_PER_FRAME)) {
    const item = page.items.get(card.id);
    if (!item) continue;
    judge(page, item, card);
    page.isChanged = true;
  }
  const counts = filter(page);
  reorder(page);
  tellCounts(page, counts);
  drawTray(page);
  if (page.waiting.length) page.draw();
}

function filter(page) {
  const matches = matcher(page.state);
  const counts = { matched: 0, fit: 0, shown: 0, judged: 0, unknown: 0 };
  for (const item of page.items.values()) {
    const isMatch = matches(item);
    const fits = isFitting(item.card);
    const isShown = isMatch && (fits || !page.state.fits);
    counts.matched += isMatch;
    counts.fit += isMatch && fits;
    counts.shown += isShown;
    counts.judged += item.card !== null;
    counts.unknown += isMatch && item.card === null;
    if (item.isShown !== isShown) item.node.hidden = !(item.isShown = isShown);
  }
  return counts;
}

/** Moves cards only where the order is another one, and not at every verdict. */
function reorder(page) {
  if (!page.isChanged) return;
  const now = performance.now();
  if (now - page.reordered < REORDER_MS) return later(page);
  page.reordered = now;
  page.isChanged = false;
  const items = sorted(page.items.values(), page.state.sort);
  const order = items.map((item) => item.model.id).join(" ");
  if (order === page.order) return;
  page.order = order;
  const focused = page.list.contains(document.activeElement) ? document.activeElement : null;
  page.list.replaceChildren(...items.map((item) => item.node));
  focused?.focus({ preventScroll: true });
}

/** One more pass when cards may change places again. */
function later(page) {
  page.timer ||= setTimeout(() => ((page.timer = 0), page.draw()), REORDER_MS);
}

function tellCounts(page, counts) {
  const all = page.items.size;
  const isWorking = (!page.isDone || page.waiting.length > 0) && counts.judged < all;
  page.count.textContent = HOME.counts({ ...counts, all, isFiltered: isFiltered({ ...page.state, fits: "" }), isWorking });
  page.list.setAttribute("aria-busy", String(isWorking));
  page.empty.hidden = counts.shown > 0 || !all;
  if (!page.empty.hidden) tellEmpty(page, counts, isWorking);
}

/** No card is left: says why, and what to do. */
function tellEmpty(page, { matched, unknown }, isWorking) {
  const why = !matched
    ? HOME.noMatch
    : isWorking
      ? HOME.noneYet
      : unknown
        ? HOME.noneKnown(unknown)
        : HOME.noneFits(machine.isThis ? HOME.thisMachine : machineName());
  const clear = el("button", { type: "button", text: HOME.showAll, onclick: () => clearFilters(page) });
  page.empty.replaceChildren(el("p", { text: why }), clear);
}

function clearFilters(page) {
  const { sort, engine } = page.state;
  Object.assign(page.state, DEFAULTS, { sort, engine });
  const models = [...page.items.values()].map((item) => item.model);
  page.filters.replaceChildren(controls(page.state, models, (name) => changed(page, name)));
  changed(page, "q");
  page.filters.querySelector("input").focus();
}

function compare(page, id, isOn) {
  if (isOn) compared.add(id);
  else compared.delete(id);
  page.draw();
}

/** The bar at the foot: what was picked to compare. */
function drawTray(page) {
  const ids = [...compared].filter((id) => page.items.has(id));
  const said = ids.join(" ") + machineName() + page.state.engine;
  if (page.tray.dataset.said === said) return;
  page.tray.dataset.said = said;
  page.tray.hidden = ids.length === 0;
  for (const [id, item] of page.items) item.box.disabled = ids.length >= MOST_COMPARED && !compared.has(id);
  const columns = { ref: ids.map((id) => `catalog:${id}`), engine: ids.map(() => page.state.engine).join(",") };
  const link = `/compare${query({ ...columns, ...machine })}`;
  page.tray.replaceChildren(
    el("p", { text: ids.join(", ") }),
    ids.length < 2
      ? el("p", { class: "muted", text: HOME.compareMore })
      : el("a", { class: "button primary", href: link, text: HOME.compareCount(ids.length) }),
    el("button", { type: "button", text: COMMON.clear, onclick: () => clearCompared(page) }),
  );
}

function clearCompared(page) {
  for (const id of compared) if (page.items.has(id)) page.items.get(id).box.checked = false;
  compared.clear();
  page.draw();
}
