// A panel that unfolds. Its content is made when it opens.

import { el } from "./dom.js";

/** {node, heading, summary, refresh()}: f() fills it when it opens, and on refresh() while it is open. */
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
