// Numbers as people read them; bytes exactly as the command line writes them.

const STEPS = [
  [1024 ** 4, "TiB"],
  [1024 ** 3, "GiB"],
  [1024 ** 2, "MiB"],
  [1024, "KiB"],
];
const COUNTS = [
  [1e12, "T"],
  [1e9, "B"],
  [1e6, "M"],
  [1e3, "K"],
];
const grouped = new Intl.NumberFormat("en-US");

/** Two places; exactly between two, the even one, as the command line rounds: 1.125 -> "1.12". */
const twoPlaces = (x) => ((x * 8) % 4 === 1 ? x - 0.005 : x).toFixed(2);

/** 4703649792 -> "4.38 GiB". */
export function bytes(n) {
  const found = STEPS.find(([step]) => n >= step);
  return found ? `${twoPlaces(n / found[0])} ${found[1]}` : `${n} B`;
}

/** 32768 -> "32,768". */
export function tokens(n) {
  return grouped.format(n);
}

/** 32768 -> "32k", 1048576 -> "1M"; what is not whole in 1024s stays as it is. */
export function short(n) {
  if (n >= 1024 ** 2 && n % 1024 ** 2 === 0) return `${n / 1024 ** 2}M`;
  if (n >= 1024 && n % 1024 === 0) return `${n / 1024}k`;
  return tokens(n);
}

/** 8190735360 -> "8.2B". */
export function params(n) {
  const found = COUNTS.find(([step]) => n >= step);
  if (!found) return String(n);
  const scaled = n / found[0];
  return `${scaled >= 100 ? Math.round(scaled) : Number(scaled.toFixed(1))}${found[1]}`;
}

const figure = (x) => (x >= 10 ? grouped.format(Math.round(x)) : String(Number(x.toPrecision(2))));

/** [38.2, 61] -> "38-61 tokens/s". */
export function rate([low, high]) {
  const [from, to] = [figure(low), figure(high)];
  return `${from === to ? from : `${from}-${to}`} tokens/s`;
}
