// Which models the home page shows, in which order; all of it is in the address.

import { el } from "./dom.js";
import { COMPARED, engineLabel } from "./engines.js";
import { COMMON, HOME } from "./texts.js";

const SIZES = [1e9, 2e9, 4e9, 8e9, 14e9, 32e9, 72e9, 130e9, 400e9];
const FITTING = new Set(["passed", "warning"]);
const MAX_TYPED = 200;
const HUB = /^https?:\/\/(?:www\.)?(?:huggingface\.co|hf\.co)\//i;

/** What can be chosen, and the value where the address has none. */
export const DEFAULTS = { task: "chat", q: "", size: "", publisher: "", fits: "", sort: "best", engine: COMPARED[0] };

const plain = (text) => text.toLowerCase().replace(/[^a-z0-9.]+/g, " ").trim();
const joined = (text) => text.replace(/[^a-z0-9]+/g, "");

/** All the words a model can be found by, and the same without spaces: "llama3.1" finds Llama 3.1. */
export function textOf(model) {
  const words = [model.title, model.id, model.publisher, model.repository, ...model.kinds];
  const text = plain(words.filter(Boolean).join(" "));
  return `${text} ${joined(text)}`;
}

export const isFitting = (card) => Boolean(card) && FITTING.has(card.status);

const fullness = (bar) => (bar && bar.available_bytes > 0 ? bar.required_bytes / bar.available_bytes : -1);

/** The memory that decides: the fullest one. */
export function decisiveBar(card) {
  return (card?.bars ?? []).reduce((most, one) => (fullness(one) > fullness(most) ? one : most), null);
}

/** Typical tokens per second; of an embedding model, tokens read per second. */
export function speedOf({ model, card }) {
  const isReader = model.kinds.includes("embedding");
  const typical = isReader ? card?.speed?.prefill_typical : card?.speed?.typical;
  return typical ?? null;
}

const { compare: inOrder } = new Intl.Collator("en", { numeric: true }); // made once: it is called thousands of times
const ofFitting = (value) => (item) => (isFitting(item.card) ? (value(item.card) ?? null) : null);

/** The columns and other sort keys: the value of a model (null: unknown), and whether the largest comes first. */
const SORTS = {
  name: { value: ({ model }) => model.title },
  speed: { value: speedOf, isDown: true, isJudged: true },
  download: { value: ({ card }) => card?.download_bytes || null, isJudged: true },
  context: { value: ofFitting((card) => card.max_context), isDown: true, isJudged: true },
  memory: { value: ({ card }) => decisiveBar(card)?.required_bytes ?? null, isJudged: true },
  parameters: { value: ({ model }) => model.parameters ?? null, isDown: true },
  released: { value: ({ model }) => model.released ?? null, isDown: true },
};

/** "-speed" -> {name: "speed", isReversed: true}. */
function sortOf(sort) {
  const isReversed = sort.startsWith("-");
  return { name: isReversed ? sort.slice(1) : sort, isReversed };
}

/** Whether the order depends on the answers for this machine. */
export const needsAnswers = (sort) => sort === "best" || Boolean(SORTS[sortOf(sort).name].isJudged);

/** "ascending" or "descending" for a column that is sorted by, else null. */
export function direction(sort, column) {
  const { name, isReversed } = sortOf(sort);
  if (name !== column) return null;
  return Boolean(SORTS[name].isDown) === isReversed ? "ascending" : "descending";
}

/** The sort after a press on a column's head: its usual direction, then the other one. */
export const pressed = (sort, column) => (sort === column ? `-${column}` : column);

function byValue({ value, isDown = false }, isReversed) {
  const sign = isDown === isReversed ? 1 : -1;
  return (a, b) => {
    const [one, other] = [value(a), value(b)];
    if (one === null || other === null) return Number(one === null) - Number(other === null);
    return sign * (typeof one === "string" ? inOrder(one, other) : one - other);
  };
}

const first = (key) => (a, b) => Number(b.card?.[key] ?? 0) - Number(a.card?.[key] ?? 0);
const fitFirst = (a, b) => Number(isFitting(b.card)) - Number(isFitting(a.card));
const MERITS = [fitFirst, first("is_good"), first("is_notable"), first("worth")]; // as `edgekit recommend` ranks

function picksFirst(picks) {
  const places = new Map(picks.map((id, at) => [id, at]));
  const placeOf = ({ model }) => places.get(model.id) ?? picks.length;
  return (a, b) => placeOf(a) - placeOf(b);
}

/** The picks, then the others by merit. */
function byMerit(picks) {
  const merits = [picksFirst(picks), ...MERITS];
  return (a, b) => merits.reduce((found, merit) => found || merit(a, b), 0);
}

/** Items in the order of the chosen sort. Where it says nothing they stay as they are: in the shipped order. */
export function sorted(items, sort, { picks, isComplete }) {
  const { name, isReversed } = sortOf(sort);
  if (name === "best") return [...items].sort(isComplete ? byMerit(picks ?? []) : picksFirst(picks ?? []));
  return [...items].sort(byValue(SORTS[name], isReversed));
}

/** Whether a model is shown: those of the task, or any that was searched for. One not judged yet may fit. */
export function matcher(state) {
  const words = plain(state.q.trim().replace(HUB, "")).split(" ").filter(Boolean);
  const whole = joined(words.join(""));
  const most = Number(state.size) || Infinity;
  return ({ model, card, text }) =>
    (words.every((word) => text.includes(word)) || text.includes(whole)) &&
    (model.is_for_task || whole !== "") &&
    (!state.publisher || model.publisher === state.publisher) &&
    (model.parameters ?? 0) <= most &&
    (!state.fits || card === null || isFitting(card));
}

/** The address's parameters, where they are valid. */
export function stateOf(query) {
  const state = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) state[name] = query.get(name) ?? DEFAULTS[name];
  if (state.sort !== "best" && !Object.hasOwn(SORTS, sortOf(state.sort).name)) state.sort = DEFAULTS.sort;
  if (!Object.hasOwn(HOME.tasks, state.task)) state.task = DEFAULTS.task;
  if (!SIZES.includes(Number(state.size))) state.size = "";
  if (!COMPARED.includes(state.engine)) state.engine = DEFAULTS.engine;
  state.q = state.q.slice(0, MAX_TYPED);
  state.publisher = state.publisher.slice(0, MAX_TYPED);
  return state;
}

/** What differs from the defaults, for the address. */
export function queryOf(state) {
  return Object.entries(state).filter(([name, value]) => value && value !== DEFAULTS[name]);
}

const optionOf = ([value, text]) => el("option", { value, text });

function menu(id, label, options, value, onpick) {
  const pick = el("select", { id, class: "small-menu", "aria-label": label, onchange: () => onpick(pick.value) });
  pick.append(...options.map(optionOf));
  pick.value = value;
  return pick;
}

/** One chip per task; the chosen one is pressed. onChange(name) after state[name] was set. */
export function taskChips(state, onChange) {
  const chips = Object.entries(HOME.tasks).map(([task, text]) =>
    el("button", { type: "button", class: "chip", text, "data-task": task, onclick: () => choose(task) })
  );
  const mark = () => {
    for (const chip of chips) chip.setAttribute("aria-pressed", String(chip.dataset.task === state.task));
  };
  const choose = (task) => {
    if (state.task === task) return;
    state.task = task;
    mark();
    onChange("task");
  };
  mark();
  return el("div", { class: "chip-line", role: "group", "aria-label": HOME.task }, chips);
}

/** Which engine the answers are for. */
export function engineMenu(state, onChange) {
  const options = COMPARED.map((name) => [name, HOME.forEngine(engineLabel(name))]);
  return menu(
    "home-engine",
    COMMON.engine,
    options,
    state.engine,
    (value) => ((state.engine = value), onChange("engine")),
  );
}

/** The menu of orders; a reversed one, which only a column's head sets, is added while it is chosen. */
function sortMenu(state, onChange) {
  const pick = menu("filter-sort", HOME.sort, [], "", (value) => ((state.sort = value), onChange("sort")));
  const show = () => {
    const options = Object.entries(HOME.sorts);
    const { name, isReversed } = sortOf(state.sort);
    if (isReversed) options.push([state.sort, HOME.reversed(HOME.sorts[name])]);
    pick.replaceChildren(...options.map(optionOf));
    pick.value = state.sort;
  };
  show();
  return { node: pick, show };
}

function fitsOnly(state, onChange) {
  const take = () => ((state.fits = box.checked ? "1" : ""), onChange("fits"));
  const box = el("input", { type: "checkbox", id: "filter-fits", checked: Boolean(state.fits), onchange: take });
  return { node: el("label", { class: "check" }, box, HOME.fitsOnly), show: () => (box.checked = Boolean(state.fits)) };
}

/** Parameters and publisher: on a narrow window behind a button. */
function moreFilters(state, onChange) {
  const sizes = [["", HOME.anySize], ...SIZES.map((size) => [String(size), HOME.upTo(size)])];
  const size = menu("filter-size", HOME.size, sizes, state.size, (value) => ((state.size = value), onChange("size")));
  const take = (value) => ((state.publisher = value), onChange("publisher"));
  const publisher = menu("filter-publisher", HOME.publisher, [], "", take);
  const panel = el("div", { class: "more-filters", id: "more-filters" }, size, publisher);
  const toggle = el("button", {
    type: "button",
    class: "small more-toggle",
    text: HOME.moreFilters,
    "aria-controls": panel.id,
    "aria-expanded": "false",
    onclick: () => toggle.setAttribute("aria-expanded", String(panel.classList.toggle("open"))),
  });
  const show = (models) => {
    const names = new Set(models.map((model) => model.publisher).filter(Boolean));
    if (state.publisher) names.add(state.publisher);
    const rows = [...names].sort(inOrder).map((name) => [name, name]);
    publisher.replaceChildren(...[["", HOME.anyPublisher], ...rows].map(optionOf));
    publisher.value = state.publisher;
    size.value = state.size;
  };
  return { nodes: [toggle, panel], show };
}

/** {nodes, show(models)}: the filters above the table; show() after the state or the models have changed. */
export function filterBar(state, onChange) {
  const parts = [fitsOnly(state, onChange), sortMenu(state, onChange)];
  const more = moreFilters(state, onChange);
  const show = (models) => {
    for (const part of parts) part.show();
    more.show(models);
  };
  show([]);
  return { nodes: [parts[0].node, ...more.nodes, parts[1].node], show };
}
