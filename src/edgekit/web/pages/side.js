// The column of settings, with what can be done with the answer: reset, share, save.

import { copy, el, oncePerFrame } from "./dom.js";
import { saveJson, savePng, saveSvg } from "./export.js";
import { COMMON, SETTINGS } from "./texts.js";

const WIDE = "(min-width: 961px)"; // as in model.css: beside the answer, else under a heading that opens
const FILES = [["PNG", savePng], ["SVG", saveSvg], ["JSON", saveJson]];

/** onreset(); onlink() brings the address up to date; onsave(f) is given the function that writes the file. */
export function side(controls, { onreset, onlink, onsave, signal }) {
  const wide = matchMedia(WIDE);
  const panel = el("details", { class: "panel side", open: wide.matches }, el("summary", {}, el("h2", { text: SETTINGS.title })), controls, buttons(onreset, onlink, onsave));
  wide.addEventListener("change", () => (panel.open = wide.matches), { signal });
  showMore(panel, controls, signal);
  return panel;
}

/** Where the column is longer than the window, its lower edge says that there is more. */
function showMore(panel, controls, signal) {
  const look = oncePerFrame(() => panel.classList.toggle("more", panel.scrollTop + panel.clientHeight < panel.scrollHeight - 2));
  const observer = new ResizeObserver(look);
  observer.observe(panel);
  observer.observe(controls);
  panel.addEventListener("scroll", look, { passive: true });
  signal.addEventListener("abort", () => observer.disconnect());
}

/** A button that is not pressed again while it works; it keeps the focus. */
async function busily(button, f) {
  if (button.ariaBusy === "true") return;
  button.ariaBusy = "true";
  await f();
  button.ariaBusy = null;
}

function buttons(onreset, onlink, onsave) {
  const link = el("button", { type: "button", text: COMMON.copyLink });
  link.addEventListener("click", () => (onlink(), copy(location.href, link)));
  const reset = el("button", { type: "button", text: SETTINGS.reset, title: SETTINGS.resetHint, onclick: onreset });
  const saves = FILES.map(([text, f]) => el("button", { type: "button", text, "aria-label": SETTINGS.saveAs(text), onclick: ({ currentTarget }) => busily(currentTarget, () => onsave(f)) }));
  return el(
    "div",
    { class: "side-buttons" },
    el("div", { class: "buttons" }, reset, link),
    el("div", { class: "buttons", role: "group", "aria-label": SETTINGS.save }, el("span", { class: "muted small", text: SETTINGS.save }), ...saves),
  );
}
