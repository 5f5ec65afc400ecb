// Numbers and their units as people read them; bytes exactly as the command line writes them.

/** Without the marks that change the direction of text: a name must not turn around what is written next to it. */
export const withoutMarks = (text) => text.replaceAll(/[\u200E\u200F\u202A-\u202E\u2066-\u2069]/g, "");

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
const grouped1 = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** Two places; exactly between two, the even one, as the command line rounds: 1.125 -> "1.12". */
const twoPlaces = (x) => ((x * 8) % 4 === 1 ? x - 0.005 : x).toFixed(2);

/** 4703649792 -> "4.38 GiB". */
export function bytes(n) {
  const found = STEPS.find(([step]) => n >= step);
  return found ? `${twoPlaces(n / found[0])} ${found[1]}` : `${n} B`;
}

/** One place; exactly between two, the even one, as the command line rounds: 6.25 -> "6.2". */
const onePlace = (x) => grouped1.format((x * 4) % 4 === 1 ? x - 0.01 : x);

/** 4703649792 -> "4.4 GiB", from 0.1 GiB: for headlines and bars; bytes() has the second decimal. */
export function gib(n) {
  if (n >= 100 * 1024 ** 2) return `${onePlace(n / 1024 ** 3)} GiB`;
  return n >= 1024 ** 2 ? `${Math.round(n / 1024 ** 2)} MiB` : bytes(n);
}

/** (6549825126, 12348030976) -> "6.1 of 11.5 GiB"; a part too small for the unit has its own: "52 MiB of 11.5 GiB". */
export function gibOf(part, whole) {
  const isSmall = part < 0.1 * 1024 ** 3 || whole < 1024 ** 3;
  return isSmall ? `${gib(part)} of ${gib(whole)}` : `${onePlace(part / 1024 ** 3)} of ${gib(whole)}`;
}

/** 32768 -> "32,768". */
export function tokens(n) {
  return grouped.format(n);
}

/** 32768 -> "32K", 1048576 -> "1M"; what is not whole in 1024s stays as it is. */
export function short(n) {
  if (n >= 1024 ** 2 && n % 1024 ** 2 === 0) return `${n / 1024 ** 2}M`;
  if (n >= 1024 && n % 1024 === 0) return `${n / 1024}K`;
  return tokens(n);
}

/** 8190735360 -> "8.2B". */
export function params(n) {
  const found = COUNTS.find(([step]) => n >= step);
  if (!found) return String(n);
  const scaled = n / found[0];
  return `${scaled >= 100 ? Math.round(scaled) : Number(scaled.toFixed(1))}${found[1]}`;
}

/** 17412345678 -> "17.4 GB": downloads, in decimal units as the hub shows them. */
export function gb(n) {
  if (n >= 99.95e9) return `${grouped.format(Math.round(n / 1e9))} GB`;
  return n >= 0.95e9 ? `${(n / 1e9).toFixed(1)} GB` : `${Math.max(1, Math.round(n / 1e6))} MB`;
}

/** 47104 -> "46K", 1048576 -> "1M": a context in a headline, rounded down. */
export function wholeK(n) {
  if (n >= 1024 ** 2) return `${Math.floor(n / 1024 ** 2)}M`;
  return n >= 1024 ? `${Math.floor(n / 1024)}K` : tokens(n);
}

/** Two significant digits, one below 1: 1,200, 35, 3.5, 0.4; as in a check. */
export const figure = (x) => (x < 9.95 ? x.toFixed(1) : grouped.format(Number(x.toPrecision(2))));

/** 38.2 -> "about 38 tokens/s": a typical value. */
export function rate(typical, about = "about ") {
  if (typical < 0.05) return "less than 0.1 tokens/s";
  return `${about}${figure(typical)} tokens/s`;
}

/** [31, 46] -> "31-46", the 80 % interval; empty where the ends are the same. */
export function rateInterval([low, high]) {
  const [from, to] = [figure(low), figure(high)];
  return from === to ? "" : `${from}-${to}`;
}

/** Sizes of memory as they are sold, in GB: drivers report a little less than is on the box. */
const SOLD = [
  1,
  2,
  3,
  4,
  6,
  8,
  10,
  11,
  12,
  16,
  18,
  20,
  24,
  32,
  36,
  40,
  48,
  64,
  72,
  80,
  94,
  96,
  128,
  141,
  144,
  180,
  192,
];

/** 25216155648 -> "24 GB": a card or RAM by the label on its box. */
export function boxed(n) {
  const size = n / 1024 ** 3;
  const sold = SOLD.find((one) => one >= size - 0.01) ?? Math.ceil(size / 32) * 32;
  if (size < 0.9) return gib(n);
  return sold >= 1024 && sold % 1024 === 0 ? `${sold / 1024} TB` : `${grouped.format(sold)} GB`;
}
