// Draws the plot: axes, lines with their names, the usable limit, the trained context, and the marker.

import { svg } from "./dom.js";
import { short } from "./format.js";
import { byteTicks, contextTicks, spread, visibleEnd } from "./plot_scale.js";
import { PLOT } from "./texts.js";

const GIB = 1024 ** 3;
const LABEL_GAP = 14;
const LETTER = 7.4; // pixels, about

const line = (className, x1, y1, x2, y2) => svg("line", { class: className, x1, y1, x2, y2 });
const text = (className, x, y, words, anchor = "start") =>
  svg("text", { class: className, x, y, "text-anchor": anchor, text: words });

export function axes({ box, scale, contexts, sizes, isLog }) {
  const bottom = box.top + box.height;
  const rows = byteTicks(sizes).flatMap((size) => [
    line("grid", box.left, scale.y(size), box.left + box.width, scale.y(size)),
    text("tick-text", box.left - 8, scale.y(size) + 4, String(Number((size / GIB).toFixed(2))), "end"),
  ]);
  const columns = contextTicks(contexts, isLog, box.width).flatMap((count) => [
    line("tick-mark", scale.x(count), bottom, scale.x(count), bottom + 4),
    text("tick-text", scale.x(count), bottom + 18, short(count), "middle"),
  ]);
  return svg(
    "g",
    { class: "axes" },
    ...rows,
    ...columns,
    text("axis-text", box.left - 8, box.top - 10, PLOT.unit, "end"),
    text("axis-text", box.left + box.width, bottom + 34, PLOT.axis, "end"),
  );
}

/** The y of a line at an x, in pixels; linear between its points. */
function heightAt(x, points, scale) {
  const places = points.map(([count, size]) => [scale.x(count), scale.y(size)]);
  const next = places.findIndex(([at]) => at >= x);
  if (next <= 0) return (next ? places.at(-1) : places[0])[1];
  const [[x0, y0], [x1, y1]] = [places[next - 1], places[next]];
  return y0 + ((y1 - y0) * (x - x0)) / (x1 - x0 || 1);
}

/** The end of a horizontal line, left or right, where its label crosses fewer curves. Curves only rise. */
function calmerEnd({ box, scale, curves }, words, baseline) {
  const wide = words.length * LETTER;
  const crossed = (left) =>
    curves.filter(({ points }) =>
      heightAt(left, points, scale) > baseline - LABEL_GAP && heightAt(left + wide, points, scale) < baseline + 4
    ).length;
  const [left, right] = [box.left + 6, box.left + box.width - 6];
  return crossed(right - wide) < crossed(left) ? { x: right, anchor: "end" } : { x: left, anchor: "start" };
}

/** The usable limit and the trained context. */
export function rules({ box, scale, sizes, contexts, curves, budget, native }) {
  const right = box.left + box.width;
  const nodes = [];
  if (budget <= sizes[1]) {
    const y = scale.y(budget);
    const words = PLOT.usable(budget);
    const { x, anchor } = calmerEnd({ box, scale, curves }, words, y - 5);
    nodes.push(line("budget", box.left, y, right, y), text("budget-text", x, y - 5, words, anchor));
  }
  if (native && native >= contexts[0] && native <= contexts[1]) {
    const x = scale.x(native);
    const isRight = x > box.left + box.width / 2;
    nodes.push(line("native", x, box.top, x, box.top + box.height));
    nodes.push(
      text(
        "native-text",
        x + (isRight ? -6 : 6),
        box.top + box.height - 8,
        PLOT.trained(native),
        isRight ? "end" : "start",
      ),
    );
  }
  return svg("g", { class: "rules" }, ...nodes);
}

const path = (points, scale) =>
  points.map(([count, size], i) => `${i ? "L" : "M"}${scale.x(count).toFixed(1)} ${scale.y(size).toFixed(1)}`).join("");

/** One line per cache type with its name at the end; the current one is bold. */
export function lines({ box, scale, sizes, curves, present }) {
  const drawn = curves.map((curve) =>
    svg("path", {
      class: `curve k${curve.colour}${curve.cache === present ? " present" : ""}`,
      d: path(curve.points, scale),
      "clip-path": "url(#plot-clip)",
    })
  );
  return svg("g", { class: "curves" }, ...drawn, ...names({ box, scale, sizes, curves, present }));
}

function names({ box, scale, sizes, curves, present }) {
  const ends = curves.map((curve) => visibleEnd(curve.points, sizes[1]));
  const kept = ends.map((end) => !end.isCut);
  const beside = curves.filter((_, i) => kept[i]);
  const places = spread(beside.map((curve) => scale.y(curve.points.at(-1)[1]) + 4), LABEL_GAP, [
    box.top + 4,
    box.top + box.height,
  ]);
  const named = (curve, x, y, anchor) =>
    text(`curve-name k${curve.colour}${curve.cache === present ? " present" : ""}`, x, y, curve.cache, anchor);
  const cut = curves
    .filter((_, i) => !kept[i])
    .map((curve, i) => {
      const x = scale.x(visibleEnd(curve.points, sizes[1]).at[0]);
      return named(curve, Math.max(box.left + 40, x - 6), box.top + 11 + i * LABEL_GAP, "end");
    });
  return [...beside.map((curve, i) => named(curve, scale.x(curve.points.at(-1)[0]) + 6, places[i], "start")), ...cut];
}

/** The current setting; its label is above the lines. */
export function marker({ box, scale, contexts, sizes }, { context, size }) {
  const x = scale.x(Math.min(contexts[1], Math.max(contexts[0], context)));
  const y = Math.max(box.top, scale.y(Math.min(size, sizes[1])));
  const words = PLOT.point(context, size);
  const half = (words.length * LETTER) / 2;
  const middle = Math.min(box.left + box.width - half, Math.max(box.left + half, x));
  return svg(
    "g",
    { class: "marker" },
    line("marker-line", x, box.top, x, box.top + box.height),
    svg("circle", { class: "marker-dot", cx: x, cy: y, r: 6 }),
    text("marker-text", middle, box.top - 9, words, "middle"),
  );
}

/** The crosshair: a vertical line with a dot on every curve. */
export function crosshair({ box, scale, sizes, curves }, index) {
  const count = curves[0].points[index][0];
  const x = scale.x(count);
  const dots = curves
    .map((curve) => ({ curve, size: curve.points[index]?.[1] }))
    .filter(({ size }) => size !== undefined && size <= sizes[1])
    .map(({ curve, size }) => svg("circle", { class: `cross-dot k${curve.colour}`, cx: x, cy: scale.y(size), r: 3.5 }));
  return [line("cross-line", x, box.top, x, box.top + box.height), ...dots];
}
