// The home page: the best models for the chosen machine as cards, and all models as a table.

import { call, connection, events, query } from "./api.js";
import { makePick } from "./card.js";
import { compared, compareTray } from "./compared.js";
import { announce, el, fault, oncePerFrame } from "./dom.js";
import { DEFAULTS, engineMenu, filterBar, isFitting, matcher, needsAnswers } from "./filters.js";
import { queryOf, sorted, stateOf, taskChips, textOf } from "./filters.js";
import { finder } from "./finder.js";
import { machine, machineChooser } from "./machine.js";
import { ModelList } from "./model_list.js";
import { go, replaceQuery, route } from "./router.js";
import { FINDER, HOME, SHELL } from "./texts.js";

const PICKS = 3;
const FIRST_ROWS = 10; // of the table: what a person sees of it at once
const DRAWN_PER_FRAME = 16; // answers drawn in one frame, so that each frame stays short
const MAX_ANSWERS = 8; // machines and tasks whose answers are kept, for who comes back
const FRESH_MS = 600_000; // after that this computer may have other programs running
const QUIET_MS = 700; // after the last change, before it is announced

/** Question -> its answer, the oldest first: {home, items, picks, order, isDone, asked ...}. */
const answers = new Map();

route("/", { title: SHELL.pages.home, render });

async function render(root, params, { signal }) {
  const page = newPage(stateOf(params), signal);
  drawFrame(root, page);
  machine.addEventListener("change", () => ask(page), { signal });
  compared.addEventListener("change", () => showCompared(page), { signal });
  connection.addEventListener("lost", () => showStale(page, HOME.stale), { signal });
  await ask(page);
}

function newPage(state, signal) {
  const page = { state, signal, answer: null, waiting: [], asked: new AbortController(), close: () => {} };
  page.draw = oncePerFrame(() => !signal.aborted && drawAnswers(page));
  page.tell = afterwards(() => !signal.aborted && announce(page.count.textContent));
  signal.addEventListener("abort", () => (page.asked.abort(), page.close()));
  return page;
}

/** Calls f once nothing has asked for it for a while. */
function afterwards(f) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(f, QUIET_MS);
  };
}

// --- the frame: everything has its place before anything is known

function drawFrame(root, page) {
  const onChange = (name) => changed(page, name);
  page.chooser = machineChooser(page.signal);
  page.search = finder({
    label: FINDER.label,
    placeholder: HOME.placeholder(0),
    value: page.state.q,
    isLarge: true,
    onpick: (reference) => openModel(page, reference),
    oninput: (text) => ((page.state.q = text.slice(0, 200)), changed(page, "q")),
    signal: page.signal,
  });
  page.bestTitle = el("h2");
  page.picks = Array.from({ length: PICKS }, () => makePick((item) => linkOf(page, item)));
  page.pickList = el("ul", { class: "picks" }, page.picks.map((one) => one.node));
  nameTask(page);
  page.noPicks = el("p", { class: "panel no-picks", text: HOME.noPicks, hidden: true });
  page.fault = el("div", { class: "error", role: "alert", hidden: true });
  page.count = el("p", { class: "count muted", tabIndex: -1, text: HOME.counting });
  page.offer = el("button", {
    type: "button",
    class: "small offer-button",
    hidden: true,
    onclick: () => takeOffer(page),
  });
  page.filters = filterBar(page.state, onChange);
  page.list = new ModelList({
    linkOf: (item) => linkOf(page, item),
    onsort: (sort) => ((page.state.sort = sort), changed(page, "sort")),
    signal: page.signal,
  });
  page.list.showSort(page.state.sort);
  page.empty = el("div", { class: "panel empty", hidden: true });
  page.more = el("p", { class: "more-models muted", hidden: true });
  page.tray = compareTray(() => page.state.engine);
  page.results = el(
    "div",
    { class: "results" },
    el(
      "section",
      { class: "best" },
      el("div", { class: "row spread best-head" }, page.bestTitle, engineMenu(page.state, onChange)),
      page.pickList,
      page.noPicks,
    ),
    el(
      "section",
      { class: "all", "aria-label": HOME.all },
      el(
        "div",
        { class: "all-head" },
        el("h2", { text: HOME.all }),
        page.count,
        page.offer,
        el("div", { class: "filters", role: "group" }, page.filters.nodes),
      ),
      page.list.node,
      page.empty,
      page.more,
    ),
  );
  root.append(
    el("h1", { class: "home-title", text: HOME.title }),
    page.chooser.node,
    el("div", { class: "ask" }, page.search.node, taskChips(page.state, onChange)),
    page.fault,
    page.results,
    page.tray.node,
  );
}

function nameTask(page) {
  const name = HOME.bestFor[page.state.task];
  page.bestTitle.replaceChildren(name, el("span", { class: "on-this-machine", text: ` ${HOME.onThisMachine}` }));
  page.pickList.setAttribute("aria-label", name);
}

/** The model page begins with the settings of the card. */
function linkOf(page, { model, card }) {
  const engine = page.state.engine;
  return `/model${query({ ref: `catalog:${model.id}`, engine, ...(card?.flags ?? {}), ...machine })}`;
}

/** A completion, or what was typed: a model of the list keeps its settings. */
function openModel(page, reference) {
  const item = page.answer?.items.get(reference);
  const engine = page.state.engine === DEFAULTS.engine ? "" : page.state.engine;
  go(item ? linkOf(page, item) : `/model${query({ ref: reference, engine, ...machine })}`);
}

// --- the question and its answer

/** Something was chosen: into the address, and onto the page. */
function changed(page, name) {
  replaceQuery(new URLSearchParams(queryOf(page.state)));
  if (name === "task" || name === "engine") {
    showCompared(page);
    ask(page);
    return;
  }
  if (name === "sort") page.list.showSort(page.state.sort);
  page.filters.show(modelsOf(page));
  if (page.answer) arrange(page);
  page.tell();
}

const modelsOf = (page) => (page.answer ? [...page.answer.items.values()].map((item) => item.model) : []);

/** Asks for the chosen machine, task and engine; what was shown stays until the answer is there. */
async function ask(page) {
  page.close();
  page.asked.abort();
  page.asked = new AbortController();
  const signal = AbortSignal.any([page.asked.signal, page.signal]);
  const { task, engine } = page.state;
  const fields = { task, engine, ...machine };
  const question = query(fields);
  page.waiting = [];
  page.isAsking = true;
  if (page.answer) resume(page);
  page.list.node.dataset.answers = "none";
  try {
    const known = answers.get(question);
    const isFresh = known && performance.now() - known.asked < FRESH_MS;
    const answer = isFresh ? known : newAnswer(await call("home", fields, { signal }));
    if (signal.aborted) return;
    keepAnswer(question, answer);
    page.isAsking = false;
    show(page, answer);
    if (!answer.isDone) follow(page, fields);
  } catch (error) {
    if (!signal.aborted && error.name !== "AbortError") fail(page, error);
  }
}

/** What was given up is asked about again. */
function resume(page) {
  const items = [...page.answer.items.values()].filter((item) => item.isGivenUp);
  for (const item of items) {
    item.isGivenUp = false;
    page.list.update(item);
  }
  if (items.length) drawCounts(page);
}

function newAnswer(home) {
  const items = home.models.map((model) => ({ model, card: null, text: textOf(model), isGivenUp: false }));
  const answer = { home, items: new Map(items.map((item) => [item.model.id, item])), asked: performance.now() };
  for (const item of items) item.card = item.model.card && cardOf(item.model.card, home);
  const isDone = home.picks !== null && items.every((item) => item.card);
  return Object.assign(answer, {
    picks: home.picks,
    nextPicks: null,
    order: null,
    arrangement: "",
    isDone,
    judgedAtOrder: 0,
  });
}

/** A card with what its pictures need: the first answer leaves out what the events have. */
function cardOf(card, home) {
  const bars = card.bars.map((one) => ({ reserve_bytes: 0, parts: [], ...one }));
  return { engine: home.engine, ...card, bars };
}

function keepAnswer(question, answer) {
  answers.delete(question);
  answers.set(question, answer);
  if (answers.size > MAX_ANSWERS) answers.delete(answers.keys().next().value);
}

/** The answers one by one, as they are made. */
function follow(page, fields) {
  page.close = events("cards/events", fields, {
    picks: ({ ids }) => takePicks(page, ids),
    card: (card) => (page.waiting.push(card), page.draw()),
    done: () => finish(page),
    failed: ({ error }) => stop(page, error),
    error: (error) => stop(page, error),
    end: () => page.answer.isDone || stop(page, new Error(HOME.stopped)),
  });
}

/** The first picks are shown at once; others, which come while the first are looked at, are offered. */
function takePicks(page, ids) {
  const { answer } = page;
  if (answer.picks === null) {
    answer.picks = ids;
    drawPicks(page);
  } else if (ids.join() !== answer.picks.join()) answer.nextPicks = ids;
}

function finish(page) {
  page.answer.isDone = true;
  page.answer.picks ??= [];
  page.draw();
  drawPicks(page);
  page.tell();
}

/** A stream that ended too early: what is not known yet stays unknown. */
function stop(page, error) {
  giveUp(page);
  if (connection.isLost) showStale(page, HOME.stale);
  else tellFault(page, error.message);
}

function giveUp(page) {
  for (const item of page.answer.items.values()) {
    if (item.card) continue;
    item.isGivenUp = true;
    page.list.update(item);
  }
  drawCounts(page);
}

/** No answer at all: the last figures stay, in grey. */
function fail(page, error) {
  if (error.about === "machine") {
    hideFault(page);
    page.chooser.fault(error.message);
    page.results.hidden = true;
    return;
  }
  if (page.answer) {
    giveUp(page);
    showStale(page, HOME.staleOf(error.message, page.answer.home.machine.label));
  } else {
    page.count.textContent = "";
    tellFault(page, error.message);
  }
}

function showStale(page, text) {
  if (!page.answer) return;
  page.results.classList.add("stale");
  tellFault(page, text);
}

/** The focus of who tries again goes from one message to the next, or to the counts. */
function tellFault(page, message) {
  const isInside = page.fault.contains(document.activeElement) || document.activeElement === page.count;
  page.fault.replaceChildren(...fault(message, () => ask(page)));
  page.fault.hidden = false;
  if (isInside) page.fault.querySelector("button").focus({ preventScroll: true });
}

function hideFault(page) {
  if (page.fault.contains(document.activeElement)) page.count.focus({ preventScroll: true });
  page.fault.hidden = true;
}

// --- drawing

/** A whole answer: the machine, the picks, the list. */
function show(page, answer) {
  const { home } = answer;
  page.answer = answer;
  page.results.hidden = false;
  page.results.classList.remove("stale");
  hideFault(page);
  page.chooser.fault("");
  page.chooser.name(home.machine.label);
  if (home.machine.what_if) page.chooser.keep(home.machine.name);
  page.search.input.placeholder = HOME.placeholder(home.known);
  nameTask(page);
  page.filters.show(modelsOf(page));
  for (const item of answer.items.values()) item.isGivenUp = false;
  page.list.forget();
  drawPicks(page);
  if (answer.arrangement !== arrangement(page)) arrange(page);
  else showOrder(page);
  drawMore(page);
  page.list.showSort(page.state.sort);
}

/** The answers that came since the last frame: each into its row, none changes places. */
function drawAnswers(page) {
  const { answer } = page;
  const picked = new Set(answer.picks ?? []);
  let isPicked = false;
  for (const card of page.waiting.splice(0, DRAWN_PER_FRAME)) {
    const item = answer.items.get(card.id) ?? newPick(answer, card);
    if (!item) continue;
    item.card = cardOf(card, answer.home);
    page.list.update(item);
    isPicked ||= picked.has(card.id);
  }
  if (isPicked) drawPicks(page);
  drawCounts(page);
  drawOffer(page);
  if (page.waiting.length) page.draw();
}

/** A pick may be a model that is not among the most used: it is listed as well. */
function newPick(answer, { id, title, publisher, entry }) {
  if (!(answer.nextPicks ?? answer.picks ?? []).includes(id)) return null;
  const model = { ...entry, id, title, publisher, is_for_task: true };
  const item = { model, card: null, text: textOf(model), isGivenUp: false };
  answer.items.set(id, item);
  return item;
}

/** Only a place whose model or card has changed is drawn again. */
function drawPicks(page) {
  const { picks, items } = page.answer;
  const isNone = picks !== null && picks.length === 0;
  page.noPicks.hidden = !isNone;
  page.pickList.hidden = isNone;
  page.picks.forEach((pick, at) => {
    const item = items.get(picks?.[at]) ?? null;
    pick.node.hidden = picks !== null && at >= picks.length;
    if (pick.item === item && pick.card === (item?.card ?? null) && pick.answer === page.answer) return;
    Object.assign(pick, { item, card: item?.card ?? null, answer: page.answer });
    pick.show(item);
  });
}

/** What the order was made for: a change of these is a person's, and makes it anew. */
const arrangement = ({ state }) => JSON.stringify([state.q, state.size, state.publisher, state.fits, state.sort]);

/** Whether the best order is known: the picks, and the answers for all models of the task. */
function isComplete({ picks, items }) {
  return picks !== null && [...items.values()].every((item) => item.card || !item.model.is_for_task);
}

function orderNow(page) {
  const { answer, state } = page;
  const matching = [...answer.items.values()].filter(matcher(state));
  return sorted(matching, state.sort, { picks: answer.nextPicks ?? answer.picks, isComplete: isComplete(answer) });
}

/** A person asked for another order or other models: the list is put together again. */
function arrange(page) {
  Object.assign(page.answer, { order: orderNow(page), arrangement: arrangement(page), judgedAtOrder: judged(page) });
  showOrder(page);
}

function showOrder(page) {
  const { order } = page.answer;
  page.list.show(order);
  page.list.node.hidden = order.length === 0;
  page.empty.hidden = order.length > 0;
  if (!order.length) tellEmpty(page);
  drawCounts(page);
  drawOffer(page);
}

const judged = (page) => [...page.answer.items.values()].filter((item) => item.card).length;

/** How many run, over the models that match. */
function drawCounts(page) {
  const { answer, state } = page;
  const counts = { runs: 0, large: 0, refused: 0, pending: 0 };
  for (const { card } of [...answer.items.values()].filter(matcher({ ...state, fits: "" }))) {
    if (!card) counts.pending += 1;
    else if (isFitting(card)) counts.runs += 1;
    else if (card.status === "refused") counts.refused += 1;
    else counts.large += 1;
  }
  const isNone = Object.values(counts).every((count) => count === 0);
  const isOver = isComplete(answer) || [...answer.items.values()].some((item) => item.isGivenUp);
  page.count.textContent = isNone ? HOME.noneShown : HOME.counts({ ...counts, isOver });
  // Tests and benchmarks wait for it. While another question is asked, the figures are those of the last one.
  if (!page.isAsking) page.list.node.dataset.answers = isOver ? "all" : "some";
}

/** A button, where the order would be another one by now. */
function drawOffer(page) {
  const text = offerText(page);
  if (text !== null && text !== page.offer.textContent) page.offer.textContent = text;
  page.offer.hidden = text === null;
}

function offerText(page) {
  const { answer, state } = page;
  if (!needsAnswers(state.sort) && !state.fits) return null;
  if (state.sort === "best" && !isComplete(answer)) return null;
  const order = orderNow(page);
  const isSame = order.length === answer.order.length && order.every((item, at) => item === answer.order[at]);
  if (isSame) return null;
  if (state.sort === "best") return HOME.better(better(answer.order, order));
  return HOME.more(judged(page) - answer.judgedAtOrder);
}

/** How many models would come into the first rows that are not there now. */
function better(before, after) {
  const shown = new Set(before.slice(0, FIRST_ROWS));
  return after.slice(0, FIRST_ROWS).filter((item) => !shown.has(item)).length;
}

function takeOffer(page) {
  const { answer } = page;
  if (answer.nextPicks) Object.assign(answer, { picks: answer.nextPicks, nextPicks: null });
  drawPicks(page);
  arrange(page);
  page.count.focus({ preventScroll: true }); // the button goes
  announce(HOME.shown(page.count.textContent));
}

/** No row is left: says why, and what to do. */
function tellEmpty(page) {
  const typed = page.state.q.trim();
  const open = el("button", {
    type: "button",
    class: "primary",
    text: HOME.openTyped,
    onclick: () => openModel(page, typed),
  });
  page.empty.replaceChildren(
    el("p", { text: typed ? HOME.noMatch(typed) : HOME.noFilterMatch }),
    el(
      "div",
      { class: "buttons" },
      typed ? open : "",
      el("button", { type: "button", text: HOME.showAll, onclick: () => clearFilters(page) }),
    ),
  );
}

function clearFilters(page) {
  const { task, sort, engine } = page.state;
  Object.assign(page.state, DEFAULTS, { task, sort, engine });
  page.search.input.value = "";
  page.search.input.focus();
  changed(page, "q");
}

/** The index has more models than the table. */
function drawMore(page) {
  const { home } = page.answer;
  const count = home.known - home.models.filter((model) => model.is_for_task).length;
  const search = el("button", {
    type: "button",
    class: "link",
    text: HOME.searchByName,
    onclick: () => searchByName(page),
  });
  page.more.replaceChildren(HOME.moreModels(count), search);
  page.more.hidden = count <= 0;
}

function searchByName(page) {
  scrollTo(0, 0);
  page.search.input.focus();
}

function showCompared(page) {
  page.tray.show();
  page.list.showCompared();
  for (const pick of page.picks) pick.showCompared();
}
