// The axes of the plot: which contexts and bytes it spans, and where each is.

const GIB = 1024 ** 3;
const ROUND = [1, 2, 2.5, 5, 10];
const HEADROOM = 1.15;

/** The position of a value between two others, on a linear or a log scale. */
function place(value, [from, to], isLog) {
  if (isLog) return Math.log(Math.max(value, from) / from) / Math.log(to / from);
  return (value - from) / (to - from);
}

/** The range of contexts: all points and the current one. */
export function contextSpan(curves, present) {
  const all = curves.flatMap((curve) => curve.points.map(([count]) => count));
  const span = [Math.min(...all), Math.max(...all, present ?? 0)];
  return span[0] === span[1] ? [span[0], span[0] + 1] : span;
}

/** The top of the plot: above the usable limit, the current setting, and every cache at the trained context. */
export function bytesSpan(curves, budget, present) {
  const within = (curve) => {
    const short = curve.points.filter(([count]) => count <= (curve.native ?? Infinity));
    return Math.max(0, ...(short.length ? short : curve.points).map(([, size]) => size));
  };
  const lowest = Math.min(...curves.map(within));
  const middle = Math.min(Math.max(...curves.map(within)), 2 * Math.max(budget, lowest));
  return [0, HEADROOM * Math.max(budget, present, middle)];
}

/** {x(tokens), y(bytes)} inside a box. */
export function scales(box, contexts, sizes, isLog) {
  return {
    x: (count) => box.left + box.width * place(count, contexts, isLog),
    y: (size) => box.top + box.height * (1 - place(size, sizes, false)),
  };
}

/** About five round numbers of bytes. */
export function byteTicks([, most]) {
  const raw = most / GIB / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = ROUND.map((one) => one * power).find((one) => one >= raw);
  const count = Math.floor(most / GIB / step);
  return Array.from({ length: count + 1 }, (_, i) => i * step * GIB);
}

/** Doublings or equal steps; few enough that labels do not touch. */
export function contextTicks([from, to], isLog, room) {
  if (!isLog) return evenTicks(to, Math.max(2, Math.floor(room / 90)));
  const all = [];
  for (let count = 2 ** Math.ceil(Math.log2(from)); count <= to; count *= 2) all.push(count);
  const every = Math.max(1, Math.ceil((all.length * 52) / room));
  return all.filter((_, i) => (all.length - 1 - i) % every === 0);
}

function evenTicks(to, count) {
  const step = 2 ** Math.round(Math.log2(to / count));
  return Array.from({ length: Math.floor(to / step) }, (_, i) => (i + 1) * step);
}

/** Where a line leaves the box at the top, else its last point. */
export function visibleEnd(points, most) {
  const over = points.findIndex(([, size]) => size > most);
  if (over < 0) return { at: points.at(-1), isCut: false };
  if (over === 0) return { at: [points[0][0], most], isCut: true };
  const [[c0, b0], [c1, b1]] = [points[over - 1], points[over]];
  return { at: [c0 + ((c1 - c0) * (most - b0)) / (b1 - b0), most], isCut: true };
}

/** Moves labels apart so that they do not overlap, in the same order. */
export function spread(places, gap, [from, to]) {
  const sorted = places.map((at, i) => ({ at, i })).sort((a, b) => a.at - b.at);
  let last = from - gap;
  for (const one of sorted) last = one.at = Math.max(one.at, last + gap);
  let next = to + gap;
  for (const one of sorted.reverse()) next = one.at = Math.min(one.at, next - gap);
  const found = [];
  for (const one of sorted) found[one.i] = one.at;
  return found;
}
