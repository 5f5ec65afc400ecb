// A part of the page that opens: its content is made when it is looked at.

import { el } from "./dom.js";

/** {node, heading, isOpen}: f() fills it, when it opens and when `refresh()` is called while it is open. */
export function fold(title, className, content, f) {
  const heading = el("h2", { text: title });
  const summary = el("summary", {}, heading);
  const node = el("details", { class: `panel fold ${className}`, "aria-label": title }, summary, content);
  let isStale = true;
  const fill = () => {
    if (!node.open || !isStale) return;
    isStale = false;
    f();
  };
  node.addEventListener("toggle", fill);
  const refresh = () => {
    isStale = true;
    fill();
  };
  return { node, heading, summary, refresh };
}
