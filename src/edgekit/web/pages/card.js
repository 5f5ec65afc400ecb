// One of the best models as a large card: made once, filled in place.

import { bar, verdict } from "./bar.js";
import { compareBox } from "./compared.js";
import { copy, el } from "./dom.js";
import { decisiveBar, speedOf } from "./filters.js";
import { figure, gb, rateInterval, tokens, wholeK } from "./format.js";
import { CARD, HOME } from "./texts.js";

const skeleton = (className) => el("span", { class: `skeleton ${className}`, "aria-hidden": "true" });

/** "Google · chat, vision · Mar 2025". */
function aboutOf(model) {
  return [model.publisher, model.kinds.join(", "), model.released && CARD.month(model.released)].filter(Boolean).join(
    " · ",
  );
}

/** "tokens/s (36-55)": the range is not broken over two lines. */
const speedLabel = (range) => [CARD.speed, " ", range && el("span", { class: "range", text: CARD.range(range) })];

/** The three figures: [value, label, title]. */
function figuresOf({ model, card }) {
  const speed = speedOf({ model, card });
  const isReader = model.kinds.includes("embedding");
  const range = card.speed && !isReader ? rateInterval(card.speed.decode) : "";
  return [
    [speed === null ? HOME.noValue : HOME.about(figure(speed)), speedLabel(range), HOME.interval(range)],
    [card.download_bytes ? gb(card.download_bytes) : HOME.noValue, CARD.download(card.variant), ""],
    [
      card.max_context ? wholeK(card.max_context) : HOME.noValue,
      CARD.context,
      HOME.tokens(tokens(card.max_context ?? 0)),
    ],
  ];
}

const NO_FIGURES = [CARD.speed, CARD.download(""), CARD.context].map((label) => [null, label, ""]);

function figures(rows) {
  const parts = rows.map(([value, label, title]) =>
    el("div", { title }, el("dt", {}, label), el("dd", {}, value ?? skeleton("skeleton-figure")))
  );
  return el("dl", { class: "pick-figures" }, parts);
}

/** A button that copies the command; without a command, a link to the model's page. */
function runButton({ model, card }, href) {
  if (!card) return el("button", { type: "button", class: "primary", disabled: true, text: CARD.copyCommand });
  if (!card.command) return el("a", { class: "button primary", href, text: CARD.howToRun });
  const press = ({ currentTarget }) => copy(card.command, currentTarget);
  const label = CARD.copyNamed(model.title);
  return el("button", {
    type: "button",
    class: "primary",
    title: card.command,
    "aria-label": label,
    text: CARD.copyCommand,
    onclick: press,
  });
}

function memory(card) {
  const one = decisiveBar(card);
  if (one) return bar(one);
  return el(
    "div",
    { class: "bar" },
    el("p", { class: "bar-empty" }, skeleton("skeleton-line")),
    el("div", { class: "track" }, skeleton("skeleton-track")),
  );
}

/** {node, show(item), showCompared()}: one card; show(null) while its model is unknown. */
export function makePick(linkOf) {
  const node = el("li", { class: "panel pick" });
  let box = null;
  const show = (item) => {
    const isInside = node.contains(document.activeElement);
    const href = item ? linkOf(item) : "";
    const card = item?.card ?? null;
    box = item ? compareBox(item.model) : null;
    node.dataset.pick = item?.model.id ?? "";
    node.dataset.status = card?.status ?? "working";
    node.replaceChildren(
      el(
        "div",
        { class: "pick-top" },
        card ? verdict(card.status, card.engine, card.runs_on) : skeleton("skeleton-verdict"),
        box?.label,
      ),
      el("h3", { class: "pick-title" }, item ? el("a", { href, text: item.model.title }) : skeleton("skeleton-title")),
      el(
        "p",
        { class: "muted small pick-about", title: item && aboutOf(item.model) },
        item ? aboutOf(item.model) : skeleton("skeleton-line"),
      ),
      figures(card ? figuresOf(item) : NO_FIGURES),
      memory(card),
      el(
        "div",
        { class: "buttons pick-buttons" },
        runButton(item ?? { card: null }, href),
        item &&
          el("a", { class: "button", href, "aria-label": CARD.detailsNamed(item.model.title), text: CARD.details }),
      ),
    );
    if (isInside) (node.querySelector("a") ?? node).focus({ preventScroll: true });
  };
  show(null);
  return { node, show, showCompared: () => box?.show() };
}
