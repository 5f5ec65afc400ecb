// The settings: a column next to the answer; on a phone, a sheet opened by a button.

import { el, oncePerFrame } from "./dom.js";
import { SETTINGS } from "./texts.js";

const WIDE = "(min-width: 861px)"; // as in model.css

/**
 * {node, open, summarise(parts)}: `open` is the button of a phone. Calls onreset(event) and onshare(event) for the
 * buttons below the settings.
 */
export function side(controls, { onreset, onshare, signal }) {
  const reset = el("button", { type: "button", text: SETTINGS.reset, title: SETTINGS.resetHint, onclick: onreset });
  const share = el("button", { type: "button", class: "primary", text: SETTINGS.share, onclick: onshare });
  const done = el("button", { type: "button", class: "done", text: SETTINGS.done, "aria-label": SETTINGS.close });
  const buttons = el("div", { class: "side-buttons" }, share, reset, done);
  const scrolled = el("div", { class: "side-scroll" }, el("h2", { text: SETTINGS.title }), controls);
  const content = el("div", { class: "side-content" }, scrolled, buttons);
  const column = el("aside", { class: "panel side", "aria-label": SETTINGS.title });
  const sheet = el("dialog", { class: "sheet", "aria-label": SETTINGS.title });
  const summary = el("small");
  const open = el(
    "button",
    { type: "button", class: "sheet-open primary" },
    el("span", { text: SETTINGS.open }),
    summary,
  );
  open.addEventListener("click", () => sheet.showModal());
  done.addEventListener("click", () => sheet.close());
  sheet.addEventListener("click", (event) => event.target === sheet && sheet.close()); // outside the box
  const wide = matchMedia(WIDE);
  const place = () => {
    sheet.close();
    (wide.matches ? column : sheet).append(content);
  };
  wide.addEventListener("change", place, { signal });
  place();
  showMore(scrolled, content, signal);
  const summarise = (parts) => (summary.textContent = SETTINGS.openSummary(parts));
  return { node: el("div", { class: "side-place" }, column, sheet), open, summarise };
}

/** Marks the lower edge while there are more settings below it. */
function showMore(scrolled, content, signal) {
  const isLonger = () => scrolled.scrollTop + scrolled.clientHeight < scrolled.scrollHeight - 2;
  const look = oncePerFrame(() => content.classList.toggle("more", isLonger()));
  const observer = new ResizeObserver(look);
  observer.observe(scrolled);
  for (const child of scrolled.children) observer.observe(child);
  scrolled.addEventListener("scroll", look, { passive: true });
  signal.addEventListener("abort", () => observer.disconnect());
}
