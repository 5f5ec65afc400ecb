// One model of the catalog as a card: made once, changed in place when its verdict comes.

import { bar, verdict } from "./bar.js";
import { el } from "./dom.js";
import { isFitting } from "./filters.js";
import { tokens } from "./format.js";
import { CARD, COMMON, HOME } from "./texts.js";

const BARS = 2; // memories shown on a card, the fullest ones
const FACTS = [
  [CARD.quantization, (card) => card.variant && (card.is_good ? card.variant : CARD.lowQuality(card.variant))],
  [CARD.context, (card) => card.context_tokens && tokens(card.context_tokens)],
  [CARD.cache, (card) => card.cache],
  [CARD.speed, (card) => card.speed && speed(card.speed)],
];

/** One figure to remember, its interval in small. */
function speed({ typical, decode }) {
  return [CARD.speedValue(typical), " ", el("small", { class: "muted", text: CARD.speedInterval(decode) })];
}

/** Family, size, tasks, licence: what is known without a machine. */
function what(model) {
  const isSparse = model.active_parameters && model.active_parameters < model.parameters;
  const said = [
    model.family !== model.id && model.family,
    model.parameters && COMMON.parameters(model.parameters),
    isSparse && COMMON.active(model.active_parameters),
    model.kinds.join(", "),
    model.licence,
    model.released?.slice(0, 7),
  ];
  const bits = said.filter(Boolean);
  return bits.map((text, at) => [el("span", { class: "bit", text: at < bits.length - 1 ? `${text} ·` : text }), " "]);
}

function working(text) {
  return el("span", { class: "verdict verdict-working", text });
}

/** The bars that decide: the fullest memories, in their order. */
function decisive(bars) {
  const fullest = [...bars].sort((a, b) => (b.utilization ?? 0) - (a.utilization ?? 0)).slice(0, BARS);
  return bars.filter((one) => fullest.includes(one));
}

function memories(bars) {
  const shown = decisive(bars).map((one) => bar(one));
  const left = bars.length - shown.length;
  if (left === 0) return shown;
  return [...shown, el("p", { class: "muted small", text: CARD.moreMemories(left) })];
}

function factRows() {
  const values = FACTS.map(() => el("dd", { text: CARD.unknown }));
  const rows = FACTS.map(([label], at) => el("div", {}, el("dt", { text: label }), values[at]));
  return { list: el("dl", { class: "facts" }, rows), values };
}

function compareBox(model, onCompare) {
  const box = el("input", { type: "checkbox", onchange: () => onCompare(box.checked) });
  const words = el("span", {}, HOME.compare, el("span", { class: "offscreen", text: ` ${model.id}` }));
  return { box, label: el("label", { class: "check compare-check" }, box, words) };
}

/** {node, link, box, judge(card), wait(text)}. */
export function makeCard(model, onCompare) {
  const link = el("a", { text: model.id });
  const badge = el("div", { class: "card-badge" });
  const { list, values } = factRows();
  const room = el("div", { class: "card-bars" });
  const told = el("p", { class: "card-told small muted" });
  const { box, label } = compareBox(model, onCompare);
  const node = el(
    "li",
    { class: "card", "data-id": model.id },
    el("div", { class: "card-head" }, el("h2", {}, link), badge),
    el("p", { class: "card-what small muted" }, what(model)),
    list,
    room,
    el("div", { class: "card-foot" }, told, label),
  );
  const judge = (card) => {
    node.dataset.status = card.status;
    badge.replaceChildren(verdict(card.status, card.engine));
    FACTS.forEach(([, valueOf], at) => values[at].replaceChildren(...[valueOf(card) || CARD.unknown].flat()));
    room.replaceChildren(...memories(card.bars));
    told.textContent = isFitting(card) ? card.way || card.told : card.told; // the rest of it stands above
  };
  const wait = (text) => {
    node.dataset.status = "working";
    badge.replaceChildren(working(text));
    room.replaceChildren(el("div", { class: "track empty" }, el("span", { class: "room" })));
    for (const value of values) value.textContent = CARD.unknown;
    told.textContent = "";
  };
  return { node, link, box, judge, wait };
}
