// The search box for models: completions from the index while typing, and from the hub on request.

import { call, isPassing } from "./api.js";
import { el } from "./dom.js";
import { params } from "./format.js";
import { FINDER } from "./texts.js";

const MOST = 8; // completions shown
const HUB_LEAST = 3; // characters before a search of the hub is offered

let lastId = 0;

/**
 * {node, input, close()}. Calls onpick(reference) with the chosen completion, or with the typed text on Enter, and
 * oninput(text), if given, on every change (the home page filters its table by it).
 */
export function finder(
  { label, placeholder = FINDER.placeholder, value = "", isLarge = false, onpick, oninput, signal },
) {
  const id = `finder-${++lastId}`;
  const list = el("div", {
    class: "found-list",
    role: "listbox",
    id: `${id}-list`,
    "aria-label": FINDER.found,
    hidden: true,
  });
  const input = el("input", {
    id,
    type: "search",
    value,
    placeholder,
    role: "combobox",
    "aria-expanded": "false",
    "aria-controls": list.id,
    "aria-autocomplete": "list",
    "aria-label": label,
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: false,
    maxLength: 2000,
  });
  const form = el("form", { class: isLarge ? "finder large" : "finder", role: "search" }, input, list);
  const state = new Finder(input, list, onpick);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    state.submit();
  });
  input.addEventListener("input", () => {
    oninput?.(input.value);
    state.complete();
  });
  input.addEventListener("keydown", (event) => state.key(event));
  input.addEventListener("focus", () => input.value.trim() && state.complete());
  form.addEventListener("focusout", (event) => form.contains(event.relatedTarget) || state.close());
  signal?.addEventListener("abort", () => state.close());
  return { node: form, input, close: () => state.close() };
}

class Finder {
  #input;
  #list;
  #onpick;
  #request = new AbortController();
  #at = -1; // index of the highlighted option

  constructor(input, list, onpick) {
    this.#input = input;
    this.#list = list;
    this.#onpick = onpick;
  }

  async complete() {
    this.#request.abort();
    this.#request = new AbortController();
    const { signal } = this.#request;
    const typed = this.#input.value.trim();
    if (!typed) return this.close();
    try {
      const { models } = await call("complete", { q: typed, limit: MOST }, { signal });
      if (!signal.aborted && document.activeElement === this.#input) this.#show(typed, models);
    } catch (error) {
      if (!signal.aborted && !isPassing(error)) this.close(); // without completions the box still works
    }
  }

  #show(typed, models) {
    const options = models.map((model) => this.#option(model.id, model.title, detailOf(model)));
    if (typed.length >= HUB_LEAST) options.push(this.#hubOption(typed));
    this.#fill(options);
  }

  #fill(options) {
    this.#at = -1;
    this.#input.removeAttribute("aria-activedescendant");
    options.forEach((option, at) => (option.id = `${this.#list.id}-${at}`));
    this.#list.replaceChildren(...options);
    this.#list.hidden = options.length === 0;
    this.#input.setAttribute("aria-expanded", String(options.length > 0));
  }

  #option(reference, title, detail) {
    const option = el(
      "div",
      { role: "option", "aria-selected": "false" },
      el("span", { text: title }),
      el("small", { text: detail }),
    );
    option.addEventListener("pointerdown", (event) => event.preventDefault()); // keeps the focus in the box
    option.addEventListener("click", () => this.#pick(reference));
    return option;
  }

  /** The last row: search the hub for what was typed. */
  #hubOption(typed) {
    const option = el(
      "div",
      { role: "option", "aria-selected": "false" },
      el("span", { text: FINDER.searchHub(typed) }),
    );
    option.addEventListener("pointerdown", (event) => event.preventDefault());
    option.addEventListener("click", () => this.#searchHub(typed));
    return option;
  }

  async #searchHub(typed) {
    this.#request.abort();
    this.#request = new AbortController();
    const { signal } = this.#request;
    this.#fill([this.#note(FINDER.searching)]);
    try {
      const { models } = await call("hub_search", { q: typed, limit: MOST }, { signal });
      if (signal.aborted) return;
      const options = models.map((model) => this.#option(model.id, model.id, FINDER.downloads(model.downloads)));
      this.#fill(options.length ? options : [this.#note(FINDER.hubEmpty)]);
    } catch (error) {
      if (!signal.aborted) this.#fill([this.#note(error.message)]);
    }
  }

  #note(text) {
    return el("div", { role: "option", "aria-disabled": "true" }, el("small", { text }));
  }

  key(event) {
    const options = [...this.#list.children];
    if (event.key === "Escape" && !this.#list.hidden) {
      event.preventDefault();
      return this.close();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || this.#list.hidden || !options.length) return null;
    event.preventDefault();
    this.#at = (this.#at + step + options.length + (this.#at < 0 && step < 0 ? 1 : 0)) % options.length;
    options.forEach((option, at) => option.setAttribute("aria-selected", String(at === this.#at)));
    this.#input.setAttribute("aria-activedescendant", options[this.#at].id);
    return options[this.#at].scrollIntoView({ block: "nearest" });
  }

  /** Enter: the marked completion, else what was typed. */
  submit() {
    const marked = this.#list.hidden ? null : this.#list.children[this.#at];
    if (marked) return marked.click();
    const typed = this.#input.value.trim();
    return typed ? this.#pick(typed) : null;
  }

  #pick(reference) {
    this.close();
    this.#onpick(reference);
  }

  close() {
    this.#request.abort();
    this.#fill([]);
  }
}

const detailOf = ({ publisher, parameters }) =>
  [publisher, parameters && params(parameters)].filter(Boolean).join(" · ");
