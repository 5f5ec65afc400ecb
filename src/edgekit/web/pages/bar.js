// Memory bars, their legend, and verdict badges.

import { el, svg } from "./dom.js";
import { verdictWord, verdictWords } from "./engines.js";
import { BARS, PLACES } from "./texts.js";

/** The components of a memory breakdown in the API's order, each with the colour group it is drawn in. */
export const COMPONENTS = [
  { name: "weights", group: "weights" },
  { name: "kv cache", group: "cache" },
  { name: "sliding kv cache", group: "cache" },
  { name: "recurrent state", group: "cache" },
  { name: "output", group: "working" },
  { name: "compute", group: "working" },
  { name: "runtime", group: "working" },
  { name: "prompt cache", group: "cache" },
  { name: "checkpoints", group: "cache" },
];
const GROUP_OF = new Map(COMPONENTS.map(({ name, group }) => [name, group]));
const GROUPS = ["weights", "cache", "working"];

export const groupOf = (component) => GROUP_OF.get(component) ?? "working";

const SHAPE_OF = { passed: "circle-check", warning: "triangle", failed: "square-cross", refused: "diamond" };

const SHAPES = {
  "circle-check": ["M8 1.2a6.8 6.8 0 1 1 0 13.6A6.8 6.8 0 0 1 8 1.2z", "M4.8 8.3l2.2 2.2 4.3-4.6"],
  triangle: ["M8 1.5L15.3 14.3H.7z", "M8 6v4M8 11.6v.9"],
  "square-cross": ["M1.5 1.5h13v13h-13z", "M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6"],
  diamond: ["M8 .8L15.2 8 8 15.2.8 8z", "M4.8 8h6.4"],
};

const share = (part, whole) => `${whole > 0 ? (100 * part) / whole : 0}%`;

/** A badge: a shape and a word; `runsOn` ("GPU", "GPU + CPU", "CPU") says where the model runs. */
export function verdict(status, engine, runsOn) {
  const [outline, sign] = SHAPES[SHAPE_OF[status] ?? "diamond"];
  const picture = svg(
    "svg",
    { viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" },
    svg("path", { d: outline, class: "shape" }),
    svg("path", { d: sign, class: "sign" }),
  );
  const fits = status === "passed" || status === "warning";
  const word = verdictWord(status, engine);
  const text = fits && runsOn ? PLACES.verdict(word, runsOn) : word;
  return el("span", { class: `verdict verdict-${status}` }, picture, el("span", { text }));
}

/** The badge of a model that is still being checked. */
export function working(text) {
  return el("span", { class: "verdict verdict-working", text });
}

/** A sentence without the verdict's word at its start, for use next to the badge. */
export function sentence(text, status) {
  const starts = verdictWords(status).flatMap((word) => [`${word}: `, `${word} `]);
  const start = starts.find((one) => text.startsWith(one)) ?? "";
  return text.slice(start.length);
}

/** The legend of these bars: only the colours that occur. */
export function legend(bars) {
  const groups = new Set(bars.flatMap((b) => b.parts.filter((p) => p.bytes > 0).map((p) => groupOf(p.component))));
  const rows = GROUPS.filter((group) => groups.has(group)).map((group) => [`c-${group}`, BARS.groups[group]]);
  if (bars.some((b) => heldByOthers(b) > 0)) rows.push(["others", BARS.inUse]);
  if (bars.some((b) => b.reserve_bytes > 0)) rows.push(["reserve", BARS.reserve]);
  rows.push(["limit", BARS.limit]);
  const items = rows.map(([className, text]) =>
    el("li", {}, el("span", { class: `swatch ${className}`, "aria-hidden": "true" }), text)
  );
  return el("ul", { class: "legend" }, items);
}

const totalOf = (b) => b.total_bytes ?? b.available_bytes + b.reserve_bytes;

const heldByOthers = (b) => totalOf(b) - b.available_bytes - b.reserve_bytes;

/** The bytes of a bar by colour group: [["weights", bytes], ...]. */
function byGroup(b) {
  const sums = new Map(GROUPS.map((group) => [group, 0]));
  for (const { component, bytes } of b.parts) sums.set(groupOf(component), sums.get(groupOf(component)) + bytes);
  return [...sums].filter(([, bytes]) => bytes > 0);
}

/** The whole bar in one sentence, for screen readers. */
function inWords(b) {
  const over = b.required_bytes - b.available_bytes;
  return [
    BARS.used(b),
    over > 0 && BARS.over(over),
    byGroup(b).map(([group, bytes]) => BARS.part(BARS.groups[group], bytes)).join(", "),
    b.reserve_bytes > 0 && BARS.reserved(b.reserve_bytes, b.because),
    b.blocked,
  ]
    .filter(Boolean)
    .join(". ");
}

function stripe(className, from, size, whole) {
  const node = el("span", { class: className });
  node.style.left = share(from, whole);
  // With a fixed scale the bar may be cut off.
  node.style.width = share(Math.max(0, Math.min(size, whole - from)), whole);
  return node;
}

/** The parts from the left; after the usable memory the reserve and what other programs hold. */
function stripes(b, whole) {
  let from = 0;
  const parts = byGroup(b).map(([group, bytes]) => {
    const node = stripe(`part c-${group}${from ? "" : " first"}`, from, bytes, whole);
    node.title = BARS.part(BARS.groups[group], bytes);
    from += bytes;
    return node;
  });
  const held = heldByOthers(b);
  return [
    stripe("room", 0, totalOf(b), whole),
    b.reserve_bytes > 0 && stripe("reserve", b.available_bytes, b.reserve_bytes, whole),
    held > 0 && stripe("others", b.available_bytes + b.reserve_bytes, held, whole),
    ...parts,
    b.required_bytes > b.available_bytes && stripe("over", b.available_bytes, from - b.available_bytes, whole),
  ];
}

/** The bar without its caption: the parts, and a mark at the usable limit. `scale`: bytes of the full width. */
export function track(b, { scale } = {}) {
  const whole = scale ?? Math.max(totalOf(b), b.required_bytes);
  const limit = el("span", { class: "mark limit" });
  limit.style.left = share(b.available_bytes, whole);
  return el("div", { class: "track", role: "img", "aria-label": inWords(b) }, stripes(b, whole), limit);
}

/** A bar with its caption: the name of the memory, used of usable, and what is left. */
export function bar(b, options) {
  const left = b.available_bytes - b.required_bytes;
  const caption = el(
    "figcaption",
    {},
    el(
      "span",
      { class: "bar-name" },
      b.memory,
      " ",
      el("strong", { text: BARS.sum(b.required_bytes, b.available_bytes) }),
    ),
    el("span", { class: "bar-left", text: left >= 0 ? BARS.left(left) : BARS.missing(-left) }),
  );
  return el("figure", { class: "bar", "data-status": b.status ?? "passed" }, caption, track(b, options));
}

/** An empty memory: what an engine may use of it. The rest of the free memory is drawn as the reserve. */
export function budgetBar(b) {
  const kept = Math.max(0, b.free_bytes - b.available_bytes);
  const total = Math.max(b.total_bytes, b.available_bytes + kept);
  const usable = { ...b, total_bytes: total, reserve_bytes: kept, parts: [] };
  const node = el("div", { class: "track", role: "img", "aria-label": BARS.budgetLabel(b) }, stripes(usable, total));
  node.querySelector(".room").after(stripe("part c-usable first", 0, b.available_bytes, total));
  const caption = el(
    "figcaption",
    {},
    el("span", { class: "bar-name", text: b.name }),
    el("span", { class: "bar-sum", text: BARS.budget(b.available_bytes, b.total_bytes) }),
  );
  return el("figure", { class: "bar" }, caption, node);
}
