// A fit and a check -> the answer in one sentence, four figures, and one bar for each memory.

import { bar, legend, sentence, verdict } from "./bar.js";
import { el } from "./dom.js";
import { engineNamed, engineWords } from "./engines.js";
import { gb, gib, gibOf, wholeK } from "./format.js";
import { COMMON, MODEL } from "./texts.js";

const AUTO = "auto"; // the engine chooses the cache type: not worth showing
const LITTLE_BYTES = 64 * 1024 ** 2; // less free memory than this is shown as none

/** The fullest memory, as a share of what is usable: it decides the verdict. */
export const fullest = (bars) =>
  bars.reduce((most, one) => ((one.utilization ?? Infinity) > (most?.utilization ?? -1) ? one : most), null);

function verbOf({ embeds, engine }) {
  return embeds ? MODEL.embeds : (engineNamed(engine.name)?.verdicts.passed ?? MODEL.runs);
}

/**
 * The sentence for a load that runs, in parts: [text, whether it comes from the check]. The place is from the check if
 * it has these settings, else from the fit.
 */
function parts(fit, check, isOfIt) {
  const verb = fit.engine === check?.engine.name ? verbOf(check) : MODEL.runs;
  const place = (isOfIt && check.place) || fit.place;
  const { typical = null } = fit.speed ?? {};
  return [
    [MODEL.start(verb, place), false],
    typical !== null && [MODEL.speedPart(typical), false],
    check?.max_context > 0 && [MODEL.roomPart(check.max_context), true],
    check?.doubt && [MODEL.roughPart(check.doubt), true],
  ].filter(Boolean);
}

/** The sentence as plain text, for screen readers. */
export function spokenSentence(fit, check, isOfIt) {
  if (!fit.place) return sentence(fit.refused ?? fit.told, fit.status);
  return parts(fit, check, isOfIt).map(([text]) => text).join("");
}

/** "Runs fully on your RTX 4090 at about 42 tokens/s, ...", or why it does not load. */
function sentenceNode(fit, check, isOfIt) {
  const isPlain = fit.refused || !fit.place;
  const told = fit.refused ?? (isOfIt && check.status === fit.status ? check.headline : fit.told);
  const status = fit.refused ? "refused" : fit.status;
  const text = isPlain
    ? [sentence(told, status)]
    : parts(fit, check, isOfIt).map(([words, isOfCheck]) =>
      el("span", { class: isOfCheck && "of-check", text: words })
    );
  return el(
    "p",
    { class: "told" },
    verdict(status, fit.engine, fit.runs_on),
    " ",
    el("span", { class: "sentence", "data-told": told }, text),
  );
}

/** Why the check fails although the memory is enough, and advice for a tight fit. */
function caveats(fit, check, isOfIt) {
  const isDoubted = isOfIt && fit.can_load && !check.can_load && check.reasons.length > 0;
  const decides = fullest(fit.bars);
  const isTight = !fit.refused && fit.status === "warning" && decides;
  return [
    isDoubted && el("p", { class: "caveat" }, el("strong", { text: MODEL.fitsBut }), check.reasons.join("; ")),
    isTight && el("p", { class: "muted hint-tight", text: tightText(decides) }),
  ];
}

function tightText({ available_bytes: available, required_bytes: required }) {
  const left = available - required;
  return left < LITTLE_BYTES ? MODEL.full : MODEL.tight(gib(left));
}

/** Why nothing fits, one reason per line. */
function reasons(fit, check, isOfIt) {
  if (!isOfIt || fit.can_load || check.can_load || !check.reasons.length) return null;
  return el("ul", { class: "notes why", "aria-label": MODEL.why }, check.reasons.map((text) => el("li", { text })));
}

export const isSample = (reference) => Boolean(reference?.startsWith("sample:"));

const figureNode = ({ name, value, unit, title, isOfCheck, key }) =>
  el(
    "div",
    { class: isOfCheck && "of-check", "data-figure": key },
    el("dt", { text: name }),
    el("dd", { title }, value, unit && " ", unit && el("small", { text: unit })),
  );

function speedFigure({ speed, can_load: canLoad }) {
  if (!speed || !canLoad) {
    return { key: "speed", name: MODEL.speed, value: canLoad ? MODEL.speedUnknown : MODEL.noValue };
  }
  const interval = MODEL.speedInterval(speed.decode);
  const unit = [MODEL.speedUnit, interval && `(${interval})`].filter(Boolean).join(" ");
  return { key: "speed", name: MODEL.speed, value: MODEL.speedValue(speed.typical), unit, title: speed.because };
}

function memoryFigure({ bars }) {
  const decides = fullest(bars);
  if (!decides) return { key: "memory", name: MODEL.memoryUnknown, value: MODEL.noValue };
  const { memory, required_bytes: required, available_bytes: available } = decides;
  const [value, whole] = gibOf(required, available).split(" of ");
  return { key: "memory", name: MODEL.memory(memory), value, unit: MODEL.of(whole), title: COMMON.bytes(required) };
}

function contextFigure(fit, check) {
  const most = check?.max_context;
  const name = MODEL.maxContext;
  if (!most) return { key: "context", name, value: COMMON.none, isOfCheck: true };
  const unit = MODEL.contextNow(fit.context_tokens);
  return { key: "context", name, value: wholeK(most), unit, title: COMMON.tokens(most), isOfCheck: true };
}

function downloadFigure(check) {
  const size = check?.download_bytes;
  const name = MODEL.download;
  if (isSample(check?.reference)) return { key: "download", name, value: MODEL.noValue, unit: MODEL.sample };
  if (!size) return { key: "download", name, value: MODEL.noDownload, unit: MODEL.onThisMachine, isOfCheck: true };
  const { quantization: unit } = check;
  return { key: "download", name, value: gb(size), unit, title: COMMON.bytes(size), isOfCheck: true };
}

/** What the answer is for: quantisation, context, cache, engine, and what lies in RAM. */
export function setupLine(fit, check) {
  const { quantization, context_tokens: context } = fit;
  const cache = fit.cache === AUTO ? null : fit.cache;
  const isOfCheck = check?.can_load && check.engine.name === fit.engine;
  const way = isOfCheck && check.runs_on.includes("+") ? check.way : null;
  return MODEL.setup({ quantization, context, cache, engine: check && engineWords(check.engine), way });
}

/** The answer's text and figures; `isOfIt`: the check is of these settings too. */
export function headline(fit, check, isOfIt) {
  const figures = [speedFigure(fit), memoryFigure(fit), contextFigure(fit, check), downloadFigure(check)];
  return [
    check?.from_index && el("p", { class: "caveat", text: MODEL.fromIndex }),
    sentenceNode(fit, check, isOfIt),
    ...caveats(fit, check, isOfIt),
    reasons(fit, check, isOfIt),
    el("dl", { class: "figures" }, figures.map(figureNode)),
  ].filter(Boolean);
}

/** One bar for each memory, and what the colours mean. */
export function bars(fit) {
  return [...fit.bars.map((one) => bar(one)), legend(fit.bars)];
}
