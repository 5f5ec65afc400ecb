// A memory and what lies in it as a stacked bar; verdicts as words with a shape.

import { bytes } from "./format.js";
import { el, svg } from "./dom.js";

/** In the order of the API; className names colour and pattern. */
export const COMPONENTS = [
  { name: "weights", label: "Weights", className: "c-weights" },
  { name: "kv cache", label: "KV cache", className: "c-kv" },
  { name: "sliding kv cache", label: "Sliding KV cache", className: "c-sliding" },
  { name: "recurrent state", label: "Recurrent state", className: "c-state" },
  { name: "output", label: "Output", className: "c-output" },
  { name: "compute", label: "Compute", className: "c-compute" },
  { name: "runtime", label: "Runtime", className: "c-runtime" },
  { name: "prompt cache", label: "Prompt cache", className: "c-prompt" },
  { name: "checkpoints", label: "Checkpoints", className: "c-checkpoints" },
];
const BY_NAME = new Map(COMPONENTS.map((one) => [one.name, one]));
BY_NAME.set("usable", { label: "Usable", className: "c-usable" }); // of a memory that holds nothing yet
const FULL = 0.85; // of what is usable: a load that takes more does not fit
const FULL_WORDS = "85 %";
/** What the hatching, the grey and the two lines of a bar mean. */
const MARKS = [
  ["reserve", "held back"],
  ["others", "in use"],
  ["full", `fits up to here (${FULL_WORDS})`],
  ["budget", "usable up to here"],
];

export const VERDICTS = {
  passed: { word: "Fits", shape: "circle-check" },
  warning: { word: "Tight", shape: "triangle" },
  failed: { word: "Does not fit", shape: "square-cross" },
  refused: { word: "Cannot run", shape: "diamond" },
};

const SHAPES = {
  "circle-check": ["M8 1.2a6.8 6.8 0 1 1 0 13.6A6.8 6.8 0 0 1 8 1.2z", "M4.8 8.3l2.2 2.2 4.3-4.6"],
  triangle: ["M8 1.5L15.3 14.3H.7z", "M8 6v4M8 11.6v.9"],
  "square-cross": ["M1.5 1.5h13v13h-13z", "M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6"],
  diamond: ["M8 .8L15.2 8 8 15.2.8 8z", "M4.8 8h6.4"],
};

const labelOf = (name) => BY_NAME.get(name)?.label ?? name;
const classOf = (name) => BY_NAME.get(name)?.className ?? "c-other";
const share = (part, whole) => `${whole > 0 ? (100 * part) / whole : 0}%`;

/** A badge: shape and words; colour only repeats them. */
export function verdict(status, text) {
  const { word, shape } = VERDICTS[status] ?? { word: status, shape: "diamond" };
  const [outline, sign] = SHAPES[shape];
  const picture = svg(
    "svg",
    { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
    svg("path", { d: outline, class: "shape" }),
    svg("path", { d: sign, class: "sign" }),
  );
  return el("span", { class: `verdict verdict-${status}` }, picture, el("span", { text: text ?? word }));
}

/** A sentence without the word that its badge says already. */
export function sentence(told, status) {
  const word = VERDICTS[status]?.word ?? "";
  return told.startsWith(`${word}: `) ? told.slice(word.length + 2) : told;
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
  const used = b.share ? ` (${b.share})` : "";
  const parts = b.parts.map((p) => `${labelOf(p.component)} ${bytes(p.bytes)}`).join(", ");
  const over = b.required_bytes - b.available_bytes;
  return [
    `${b.memory}: ${bytes(b.required_bytes)} of ${bytes(b.available_bytes)} usable${used}`,
    b.available_bytes > 0 && `Fits up to ${bytes(Math.floor(FULL * b.available_bytes))} (${FULL_WORDS})`,
    over > 0 && `${bytes(over)} too much`,
    parts,
    b.reserve_bytes > 0 && `${bytes(b.reserve_bytes)} held back: ${b.because ?? "reserve"}`,
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

function line(className, at, whole) {
  const node = el("span", { class: `mark ${className}` });
  node.style.left = share(at, whole);
  return node;
}

/** Components from the left, what others hold and the reserve from the budget on. */
function stripes(b, total, whole) {
  let from = 0;
  const parts = b.parts.map((p) => {
    const node = stripe(`part ${classOf(p.component)}`, from, p.bytes, whole);
    node.title = `${labelOf(p.component)} ${bytes(p.bytes)}`;
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

/** What may be used of a memory, before anything lies in it. */
export function budgetBar(b) {
  const total = Math.max(b.total_bytes, b.available_bytes + b.reserve_bytes);
  const held = b.reserve_bytes > 0 ? `, ${bytes(b.reserve_bytes)} held back: ${b.because}` : "";
  const amount = `${bytes(b.available_bytes)} of ${bytes(b.total_bytes)} usable`;
  const told = `${b.name}: ${amount}, ${bytes(b.free_bytes)} free${held}`;
  const usable = { ...b, parts: [{ component: "usable", bytes: b.available_bytes }] };
  const track = el("div", { class: "track", role: "img", "aria-label": told }, stripes(usable, total, total));
  const caption = el(
    "figcaption",
    {},
    el("span", { class: "bar-name", text: b.name }),
    el("span", { class: "bar-sum", text: amount }),
  );
  return el("figure", { class: "bar" }, caption, track);
}

/** A Bar of the API as a figure; scale: bytes of the whole width, to compare several. */
export function bar(b, { scale } = {}) {
  const total = b.total_bytes ?? b.available_bytes + b.reserve_bytes;
  const whole = Math.max(scale ?? 0, total, b.required_bytes);
  const track = el(
    "div",
    { class: "track", role: "img", "aria-label": inWords(b) },
    stripes(b, total, whole),
    b.available_bytes > 0 && line("full", FULL * b.available_bytes, whole),
    line("budget", b.available_bytes, whole),
  );
  const sum = `${bytes(b.required_bytes)} of ${bytes(b.available_bytes)}`;
  const caption = el(
    "figcaption",
    {},
    el("span", { class: "bar-name", text: b.memory }),
    el("span", { class: "bar-sum", text: b.share ? `${sum} · ${b.share}` : sum }),
  );
  return el("figure", { class: "bar", "data-status": b.status ?? "passed" }, caption, track);
}
