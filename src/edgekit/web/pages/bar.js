// A memory and what lies in it as a stacked bar; verdicts as words with a shape.

import { el, svg } from "./dom.js";
import { verdictWord, verdictWords } from "./engines.js";
import { BARS } from "./texts.js";

/** In the order of the API; className names colour and pattern. */
export const COMPONENTS = [
  { name: "weights", className: "c-weights" },
  { name: "kv cache", className: "c-kv" },
  { name: "sliding kv cache", className: "c-sliding" },
  { name: "recurrent state", className: "c-state" },
  { name: "output", className: "c-output" },
  { name: "compute", className: "c-compute" },
  { name: "runtime", className: "c-runtime" },
  { name: "prompt cache", className: "c-prompt" },
  { name: "checkpoints", className: "c-checkpoints" },
];
const BY_NAME = new Map(COMPONENTS.map((one) => [one.name, one]));
BY_NAME.set("usable", { className: "c-usable" }); // of a memory that holds nothing yet
/** What the hatching, the grey and the line of a bar mean. */
const MARKS = [["reserve", BARS.reserve], ["others", BARS.inUse], ["limit", BARS.limit]];

const SHAPE_OF = { passed: "circle-check", warning: "triangle", failed: "square-cross", refused: "diamond" };

const SHAPES = {
  "circle-check": ["M8 1.2a6.8 6.8 0 1 1 0 13.6A6.8 6.8 0 0 1 8 1.2z", "M4.8 8.3l2.2 2.2 4.3-4.6"],
  triangle: ["M8 1.5L15.3 14.3H.7z", "M8 6v4M8 11.6v.9"],
  "square-cross": ["M1.5 1.5h13v13h-13z", "M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6"],
  diamond: ["M8 .8L15.2 8 8 15.2.8 8z", "M4.8 8h6.4"],
};

const labelOf = (name) => BARS.components[name] ?? name;
const classOf = (name) => BY_NAME.get(name)?.className ?? "c-other";
const share = (part, whole) => `${whole > 0 ? (100 * part) / whole : 0}%`;

/** A badge: shape and words; colour only repeats them. */
export function verdict(status, engine) {
  const [outline, sign] = SHAPES[SHAPE_OF[status] ?? "diamond"];
  const picture = svg(
    "svg",
    { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
    svg("path", { d: outline, class: "shape" }),
    svg("path", { d: sign, class: "sign" }),
  );
  return el("span", { class: `verdict verdict-${status}` }, picture, el("span", { text: verdictWord(status, engine) }));
}

/** A sentence without the word that the badge before it already has. */
export function sentence(told, status) {
  const starts = verdictWords(status).flatMap((word) => [`${word}: `, `${word} `]);
  const start = starts.find((one) => told.startsWith(one)) ?? "";
  return told.slice(start.length);
}

/** Which colour, pattern and line means what: names of components, or rows of COMPONENTS. */
export function legend(components = COMPONENTS) {
  const names = [...components].map((one) => one.name ?? one);
  const rows = [...names.map((name) => [classOf(name), labelOf(name)]), ...MARKS];
  const items = rows.map(([className, text]) =>
    el("li", {}, el("span", { class: `swatch ${className}`, "aria-hidden": "true" }), text),
  );
  return el("ul", { class: "legend" }, items);
}

/** The components that occur in some bars, in their order. */
export function occurring(bars) {
  const seen = new Set(bars.flatMap((b) => b.parts.filter((p) => p.bytes > 0).map((p) => p.component)));
  return COMPONENTS.filter((one) => seen.has(one.name));
}

/** All of a bar in one sentence. */
function inWords(b) {
  const parts = b.parts.map((p) => BARS.part(labelOf(p.component), p.bytes)).join(", ");
  const over = b.required_bytes - b.available_bytes;
  return [
    BARS.used(b),
    over > 0 && BARS.over(over),
    parts,
    b.reserve_bytes > 0 && BARS.reserved(b.reserve_bytes, b.because),
    b.blocked,
  ]
    .filter(Boolean)
    .join(". ");
}

function stripe(className, from, size, whole) {
  const node = el("span", { class: className });
  node.style.left = share(from, whole);
  node.style.width = share(size, whole);
  return node;
}

/** Components from the left, what others hold and the reserve from the budget on. */
function stripes(b, total, whole) {
  let from = 0;
  const parts = b.parts.map((p) => {
    const node = stripe(`part ${classOf(p.component)}`, from, p.bytes, whole);
    node.title = BARS.part(labelOf(p.component), p.bytes);
    from += p.bytes;
    return node;
  });
  const held = total - b.available_bytes - b.reserve_bytes;
  return [
    stripe("room", 0, total, whole),
    b.reserve_bytes > 0 && stripe("reserve", b.available_bytes, b.reserve_bytes, whole),
    held > 0 && stripe("others", b.available_bytes + b.reserve_bytes, held, whole),
    ...parts,
    from > b.available_bytes && stripe("over", b.available_bytes, from - b.available_bytes, whole),
  ];
}

/** What may be used of a memory, before anything is in it. What is free and may not be used is drawn as a reserve. */
export function budgetBar(b) {
  const kept = Math.max(0, b.free_bytes - b.available_bytes);
  const total = Math.max(b.total_bytes, b.available_bytes + kept);
  const usable = { ...b, reserve_bytes: kept, parts: [{ component: "usable", bytes: b.available_bytes }] };
  const track = el("div", { class: "track", role: "img", "aria-label": BARS.budgetLabel(b) }, stripes(usable, total, total));
  const caption = el(
    "figcaption",
    {},
    el("span", { class: "bar-name", text: b.name }),
    el("span", { class: "bar-sum", text: BARS.budget(b.available_bytes, b.total_bytes) }),
  );
  return el("figure", { class: "bar" }, caption, track);
}

/** A Bar of the API as a figure; scale: bytes of the whole width, to compare several. */
export function bar(b, { scale } = {}) {
  const total = b.total_bytes ?? b.available_bytes + b.reserve_bytes;
  const whole = Math.max(scale ?? 0, total, b.required_bytes);
  const limit = el("span", { class: "mark limit" });
  limit.style.left = share(b.available_bytes, whole);
  const track = el(
    "div",
    { class: "track", role: "img", "aria-label": inWords(b) },
    stripes(b, total, whole),
    limit,
  );
  const caption = el(
    "figcaption",
    {},
    el("span", { class: "bar-name", text: b.memory }),
    el("span", { class: "bar-sum", text: BARS.sum(b.required_bytes, b.available_bytes, b.share) }),
  );
  return el("figure", { class: "bar", "data-status": b.status ?? "passed" }, caption, track);
}
