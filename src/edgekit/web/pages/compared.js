// The models picked for a comparison. They stay while other pages are shown; the tray on the home page lists them.

import { query } from "./api.js";
import { el } from "./dom.js";
import { machine } from "./machine.js";
import { COMMON, HOME } from "./texts.js";

const MAX_COMPARED = 6;

/** Model ID -> title; dispatches "change". */
class Compared extends EventTarget {
  #titles = new Map();

  has(id) {
    return this.#titles.has(id);
  }

  get isFull() {
    return this.#titles.size >= MAX_COMPARED;
  }

  get models() {
    return [...this.#titles];
  }

  set({ id, title }, isOn) {
    if (isOn && !this.isFull) this.#titles.set(id, title);
    else if (!isOn) this.#titles.delete(id);
    this.dispatchEvent(new Event("change"));
  }

  clear() {
    this.#titles.clear();
    this.dispatchEvent(new Event("change"));
  }
}

export const compared = new Compared();

/** {label, box, show()}: the checkbox of one model; show() after the choice has changed elsewhere. */
export function compareBox(model) {
  const box = el("input", { type: "checkbox", onchange: () => compared.set(model, box.checked) });
  const show = () => {
    box.checked = compared.has(model.id);
    box.disabled = compared.isFull && !box.checked;
  };
  show();
  const words = el(
    "span",
    { class: "compare-word" },
    HOME.compare,
    el("span", { class: "offscreen", text: ` ${model.title}` }),
  );
  return { label: el("label", { class: "check compare-check" }, box, words), box, show };
}

function linkOf(models, engine) {
  const columns = { ref: models.map(([id]) => `catalog:${id}`), engine: models.map(() => engine).join(",") };
  return `/compare${query({ ...columns, ...machine })}`;
}

function tag([id, title]) {
  const remove = el("button", {
    type: "button",
    class: "quiet tag-remove",
    "aria-label": COMMON.removeNamed(title),
    text: "\u00d7",
    onclick: () => compared.set({ id, title }, false),
  });
  return el("li", { class: "tag" }, el("span", { text: title }), remove);
}

/** {node, show()}: the bar at the foot of the page; engineOf() names the engine of every column. */
export function compareTray(engineOf) {
  const node = el("div", { class: "tray", role: "region", "aria-label": HOME.compareTray, hidden: true });
  const show = () => {
    const { models } = compared;
    const isInside = node.contains(document.activeElement);
    node.hidden = models.length === 0;
    const go = models.length < 2
      ? el("p", { class: "muted tray-hint", text: HOME.compareMore })
      : el("a", { class: "button primary", href: linkOf(models, engineOf()), text: HOME.compareCount(models.length) });
    node.replaceChildren(
      el("ul", { class: "tags" }, models.map(tag)),
      go,
      el("button", { type: "button", class: "quiet", text: COMMON.clear, onclick: () => compared.clear() }),
    );
    if (isInside && !node.hidden) node.querySelector("a, button").focus();
  };
  show();
  return { node, show };
}
