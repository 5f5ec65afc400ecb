// Plot, bars and answer -> files: an SVG that needs nothing else, a PNG of it, and the JSON.

import { COMPONENTS, groupOf } from "./bar.js";
import { el, svg } from "./dom.js";
import { verdictWord } from "./engines.js";
import { BARS, PICTURE } from "./texts.js";

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "font-size", "font-weight", "font-family", "paint-order"];
const MARGIN = 20;
const BAR = 18;
const ROW = 46;
const HEAD = 62;
const TITLE_LETTER = 11; // pixels, about
const SCALE = 2; // dots of the PNG for each of the page
const CLASS_OF = new Map(COMPONENTS.map((one) => [one.name, `c-${one.group}`]));

/** "Qwen/Qwen3 8B" -> "Qwen-Qwen3-8B": safe in every file system. */
function fileName(model, ending) {
  const plain = model.replace(/^.*?:\/\//, "").replaceAll(/[^A-Za-z0-9._-]+/g, "-").replaceAll(/^[-.]+|[-.]+$/g, "");
  return `edgekit-${plain.slice(-80) || "model"}.${ending}`;
}

/** Runs f as if the light theme were chosen: files have a white ground. Nothing is painted meanwhile. */
function inLight(f) {
  const root = document.documentElement;
  const before = root.dataset.theme;
  root.dataset.theme = "light";
  try {
    return f();
  } finally {
    if (before === undefined) delete root.dataset.theme;
    else root.dataset.theme = before;
  }
}

/** A copy whose looks stand in the nodes themselves. */
function inlined(node) {
  const twin = node.cloneNode(false);
  twin.removeAttribute("class");
  if (node.nodeType === Node.ELEMENT_NODE && node.tagName !== "clipPath") {
    const style = getComputedStyle(node);
    for (const name of STYLES) {
      const value = style.getPropertyValue(name);
      if (value) twin.setAttribute(name, value);
    }
  }
  for (const child of node.childNodes) twin.append(child.nodeType === Node.ELEMENT_NODE ? inlined(child) : child.cloneNode());
  return twin;
}

/** The colour itself, not the two of which the theme takes one. */
function colour(name) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(${name})`;
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

const words = (x, y, text, props = {}) => svg("text", { x, y, fill: colour("--ink"), "font-size": 13, text, ...props });

function barNodes(bar, y, width) {
  const total = bar.total_bytes ?? bar.available_bytes + bar.reserve_bytes;
  const whole = Math.max(total, bar.required_bytes);
  const wide = (n) => (n / whole) * width;
  let from = MARGIN;
  const parts = bar.parts.map((part) => {
    const node = svg("rect", { x: from, y: y + 8, width: Math.max(0.5, wide(part.bytes)), height: BAR, fill: colour(`--${CLASS_OF.get(part.component) ?? "others"}`) });
    from += wide(part.bytes);
    return node;
  });
  const limit = MARGIN + wide(bar.available_bytes);
  return [
    words(MARGIN, y, PICTURE.bar(bar)),
    svg("rect", { x: MARGIN, y: y + 8, width: wide(total), height: BAR, fill: colour("--track") }),
    ...parts,
    svg("line", { x1: limit, x2: limit, y1: y + 4, y2: y + 12 + BAR, stroke: colour("--ink"), "stroke-width": 2 }),
  ];
}

/** Which colour is what, in one or two rows. */
function legendNodes(bars, y, width) {
  const seen = COMPONENTS.filter(({ name }) => bars.some((bar) => bar.parts.some((part) => part.component === name)));
  let [x, row] = [MARGIN, y];
  return seen.flatMap(({ name }) => {
    const label = BARS.components[name];
    const wide = 30 + label.length * 7.5;
    if (x + wide > width) [x, row] = [MARGIN, row + 18];
    const at = x;
    x += wide;
    return [svg("rect", { x: at, y: row - 10, width: 12, height: 12, fill: colour(`--c-${groupOf(name)}`) }), words(at + 17, row, label, { "font-size": 12 })];
  });
}

/** As much of a name as fits on one line. */
function cut(text, most) {
  const letters = [...text];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}

function headNodes({ fit, check }, width) {
  const word = verdictWord(fit.refused ? "refused" : fit.status, fit.engine);
  return [
    words(MARGIN, 30, cut(fit.model, Math.floor(width / TITLE_LETTER)), { "font-size": 18, "font-weight": 700 }),
    words(MARGIN, 52, PICTURE.context(word, fit.context_tokens, fit.engine, check?.machine?.name), { fill: colour("--muted") }),
  ];
}

/** The plot in its place, where there are lines. */
function plotNodes(plot, y) {
  const drawn = inlined(plot);
  drawn.setAttribute("x", MARGIN);
  drawn.setAttribute("y", y);
  return drawn;
}

/** Title, bars and plot as one picture that stands alone. */
export function picture(answer, plot) {
  return inLight(() => {
    const hasLines = Boolean(answer.curves?.length);
    const width = Math.max(560, Number(plot.getAttribute("width")) + 2 * MARGIN);
    const inner = width - 2 * MARGIN;
    const { bars } = answer.fit;
    const below = HEAD + 22 + bars.length * ROW;
    const height = below + 40 + (hasLines ? Number(plot.getAttribute("height")) : 0);
    return svg(
      "svg",
      { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height, "font-family": "system-ui, sans-serif" },
      svg("title", { text: PICTURE.title(answer.fit.model) }),
      svg("rect", { width, height, fill: "#ffffff" }),
      ...headNodes(answer, inner),
      ...bars.flatMap((bar, i) => barNodes(bar, HEAD + 24 + i * ROW, inner)),
      ...legendNodes(bars, below + 4, inner),
      hasLines && plotNodes(plot, below + 34),
    );
  });
}

function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const svgBlob = (node) => new Blob([new XMLSerializer().serializeToString(node)], { type: "image/svg+xml;charset=utf-8" });

export function saveSvg(answer, plot) {
  save(svgBlob(picture(answer, plot)), fileName(answer.fit.model, "svg"));
}

/** The same picture, painted. Rejects where the browser cannot. */
export async function savePng(answer, plot) {
  const node = picture(answer, plot);
  const address = URL.createObjectURL(svgBlob(node));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = el("canvas", { width: SCALE * Number(node.getAttribute("width")), height: SCALE * Number(node.getAttribute("height")) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
    save(blob, fileName(answer.fit.model, "png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

export function saveJson(answer) {
  const text = JSON.stringify({ schema: 1, link: location.href, ...answer }, null, 2);
  save(new Blob([text], { type: "application/json" }), fileName(answer.fit.model, "json"));
}
