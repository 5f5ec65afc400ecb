// Which cards are shown, in which order; all of it in the address.

import { el } from "./dom.js";
import { COMPARED, engineLabel } from "./engines.js";
import { COMMON, HOME } from "./texts.js";

const SIZES = [1e9, 2e9, 4e9, 8e9, 14e9, 32e9, 72e9, 130e9, 400e9];
const FITTING = new Set(["passed", "warning"]);
const ORDER = { passed: 0, warning: 1, failed: 2, refused: 3 }; // what is not judged yet comes after them

/** What can be set, and what it is where the address says nothing. */
export const DEFAULTS = { q: "", kind: "", size: "", family: "", fits: "", sort: "best", engine: COMPARED[0] };

const plain = (text) => text.toLowerCase().replace(/[^a-z0-9.]+/g, " ").trim();

/** All the words a model can be found by. */
export function textOf(model) {
  const said = [model.id, model.family, model.architecture, model.repository, ...model.kinds];
  return plain(said.filter(Boolean).join(" "));
}

export const isFitting = (card) => card !== null && FITTING.has(card.status);

const place = (item) => (item.card ? ORDER[item.card.status] : 4);
const speedOf = (item) => item.card?.speed?.typical ?? -1;
const contextOf = (item) => (isFitting(item.card) ? (item.card.context_tokens ?? -1) : -1);
const sizeOf = (item) => item.model.parameters ?? 0;
const dayOf = (item) => item.model.released ?? item.model.not_before ?? "";
const { compare: inOrder } = new Intl.Collator("en", { numeric: true }); // made once: it is asked thousands of times
const byName = (a, b) => inOrder(a.model.id, b.model.id);
const asText = (a, b) => Number(a > b) - Number(a < b);
const fitFirst = (a, b) => Number(isFitting(b.card)) - Number(isFitting(a.card));
const first = (key) => (a, b) => Number(b.card?.[key] ?? 0) - Number(a.card?.[key] ?? 0);
const MERITS = [fitFirst, first("is_good"), first("is_notable"), first("worth")]; // as `edgekit recommend` goes by them
const byMerit = (a, b) => MERITS.reduce((found, merit) => found || merit(a, b), 0);

/** Name in the address -> which of two comes first. */
const SORTS = {
  best: (a, b) => byMerit(a, b) || place(a) - place(b),
  largest: (a, b) => sizeOf(b) - sizeOf(a),
  smallest: (a, b) => sizeOf(a) - sizeOf(b),
  fastest: (a, b) => speedOf(b) - speedOf(a),
  context: (a, b) => contextOf(b) - contextOf(a),
  name: byName,
  newest: (a, b) => asText(dayOf(b), dayOf(a)),
};

/** The order of the cards; what is equal goes by its name. */
export function sorted(items, sort) {
  return [...items].sort((a, b) => SORTS[sort](a, b) || byName(a, b));
}

/** Whether a card is shown; "fits only" is asked apart, for the count. */
export function matcher(state) {
  const words = plain(state.q).split(" ").filter(Boolean);
  const most = Number(state.size) || Infinity;
  return ({ model, text }) =>
    words.every((word) => text.includes(word)) &&
    (!state.kind || model.kinds.includes(state.kind)) &&
    (!state.family || model.family === state.family) &&
    sizeOf({ model }) <= most;
}

/** The address's parameters, where they mean something. */
export function stateOf(query) {
  const state = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) state[name] = query.get(name) ?? DEFAULTS[name];
  if (!Object.hasOwn(SORTS, state.sort)) state.sort = DEFAULTS.sort;
  if (!SIZES.includes(Number(state.size))) state.size = "";
  if (!COMPARED.includes(state.engine)) state.engine = DEFAULTS.engine;
  state.q = state.q.slice(0, 200);
  return state;
}

/** What differs from the usual, for the address. */
export function queryOf(state) {
  return Object.entries(state).filter(([name, value]) => value && value !== DEFAULTS[name]);
}

export const isFiltered = (state) => ["q", "kind", "size", "family", "fits"].some((name) => state[name]);

function choice(state, name, label, options, onChange) {
  const id = `filter-${name}`;
  const take = () => ((state[name] = pick.value), onChange(name));
  const pick = el("select", { id, onchange: take }, options.map(optionOf));
  pick.value = state[name];
  if (pick.selectedIndex < 0) pick.value = state[name] = "";
  return el("div", { class: "field" }, el("label", { htmlFor: id, text: label }), pick);
}

const optionOf = ([value, text]) => el("option", { value, text });

function families(models) {
  const names = [...new Set(models.map((model) => model.family))].filter(Boolean);
  return names.sort(inOrder).map((name) => [name, name]);
}

function searchField(state, onChange) {
  const field = el("input", {
    id: "filter-q",
    type: "search",
    value: state.q,
    placeholder: HOME.searchExample,
    autocomplete: "off",
    maxLength: 200,
    oninput: () => ((state.q = field.value), onChange("q")),
  });
  return el("div", { class: "field wide" }, el("label", { htmlFor: "filter-q", text: HOME.search }), field);
}

function fitsOnly(state, onChange) {
  const box = el("input", {
    type: "checkbox",
    id: "filter-fits",
    checked: Boolean(state.fits),
    onchange: () => ((state.fits = box.checked ? "1" : ""), onChange("fits")),
  });
  return el("label", { class: "check" }, box, HOME.fitsOnly);
}

/** The controls; onChange(name) after state[name] was set. */
export function controls(state, models, onChange) {
  const sizes = SIZES.map((size) => [String(size), HOME.upTo(size)]);
  return el(
    "form",
    { class: "filters", "aria-label": HOME.filters, onsubmit: (event) => event.preventDefault() },
    searchField(state, onChange),
    choice(state, "kind", HOME.task, [["", HOME.any], ...Object.entries(HOME.tasks)], onChange),
    choice(state, "size", HOME.size, [["", HOME.any], ...sizes], onChange),
    choice(state, "family", HOME.family, [["", HOME.any], ...families(models)], onChange),
    choice(state, "sort", HOME.sort, Object.entries(HOME.sorts), onChange),
    fitsOnly(state, onChange),
  );
}

/** Which engine the verdicts are for. */
export function engineChoice(state, onChange) {
  return choice(state, "engine", COMMON.engine, COMPARED.map((name) => [name, engineLabel(name)]), onChange);
}
