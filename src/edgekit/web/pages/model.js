// The page of one model: any id, URL or file in one box; the answer, live with every control.

import { call, query } from "./api.js";
import { announce, el } from "./dom.js";
import { COMPARED } from "./engines.js";
import { machine, machinePicker } from "./machine.js";
import { ModelView } from "./model_view.js";
import { failure, open } from "./opening.js";
import { addressOf, go, route } from "./router.js";
import { Settings } from "./settings.js";
import { MODEL, SHELL } from "./texts.js";

const EXAMPLES = [
  [MODEL.welcome.catalog, ["qwen3-8b", "gemma-3-27b", "deepseek-v3"]],
  [MODEL.welcome.repository, ["Qwen/Qwen3-8B", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"]],
  [MODEL.welcome.url, ["https://huggingface.co/Qwen/Qwen3-8B-GGUF/resolve/main/Qwen3-8B-Q4_K_M.gguf"]],
  [MODEL.welcome.sample, ["sample:qwen3-30b-a3b"]],
];

function linkTo(ref) {
  return `/model?ref=${encodeURIComponent(ref)}`;
}

/** The one box. */
function box(ref) {
  const input = el("input", { id: "ref", name: "ref", value: ref, required: true, maxLength: 2000, autocomplete: "off", autocapitalize: "off", spellcheck: false, placeholder: MODEL.refExample });
  const form = el(
    "form",
    { class: "ref-form", role: "search", "aria-label": MODEL.formLabel },
    el("label", { htmlFor: "ref", text: MODEL.refLabel }),
    el("div", { class: "row" }, input, el("button", { class: "primary", text: MODEL.check })),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const said = input.value.trim();
    if (said) go(linkTo(said));
  });
  return form;
}

function welcome() {
  const [before, command, after] = MODEL.welcome.file;
  const rows = EXAMPLES.map(([told, refs]) => el("li", {}, el("p", { text: told }), ...refs.map((ref) => el("a", { href: linkTo(ref) }, el("code", { text: ref })))));
  return el(
    "section",
    { class: "panel welcome", "aria-labelledby": "welcome-title" },
    el("h2", { id: "welcome-title", text: MODEL.welcome.title }),
    el("p", { text: MODEL.welcome.lead }),
    el("ul", { class: "examples" }, ...rows, el("li", {}, el("p", {}, before, el("code", { text: command }), after), el("code", { text: "model.gguf" }))),
    el("p", {}, el("a", { href: "/", text: MODEL.welcome.all })),
  );
}

/** What the page must know beside the check: experts, and whether weights can be quantised otherwise. */
async function factsOf(ref, check, signal) {
  const id = /^(?:catalog:)?([\w.-]+)$/.exec(ref)?.[1];
  if (id && !check.reference.includes("/")) {
    const entry = await call(`catalog/${id}`, {}, { signal }).catch(() => null);
    if (entry) return { experts: isSparse(entry), mixable: true, told: entry };
  }
  const found = await call("inspect", { model: ref }, { signal }).catch(() => null);
  return { experts: found?.experts ? found.experts.count > 0 : true, mixable: found?.format !== "gguf", told: found };
}

const isSparse = (entry) => (entry.active_parameters ?? entry.parameters) < entry.parameters;

/** Several engines at once are compared, not set. */
function compare({ ref, chosen }) {
  const fields = { ref: COMPARED.map(() => ref), engine: COMPARED.join(",") };
  location.replace(addressOf(`/compare${query(fields)}&context=${encodeURIComponent(chosen.context ?? "")}`));
}

/** A first answer; another machine that is chosen before it came, or after it failed, is asked about at once. */
async function answer(place, settings, context, isAgain = false) {
  const round = new AbortController();
  context.signal.addEventListener("abort", () => round.abort(), { once: true });
  const again = () => {
    round.abort();
    answer(place, settings, context, true);
  };
  machine.addEventListener("change", again, { signal: round.signal });
  document.documentElement.dataset.fit = "busy";
  try {
    const { check, facts } = await open(place, settings.checkFields(), { signal: round.signal, further: (found, signal) => factsOf(settings.ref, found, signal) });
    if (round.signal.aborted) return;
    machine.removeEventListener("change", again); // from here on the view listens
    const view = new ModelView(settings, facts, context.signal);
    place.replaceChildren(view.node);
    if (isAgain) keepFocus(view.head);
    await view.begin(check);
    if (!context.signal.aborted) announce(MODEL.answered(settings.name));
  } catch (error) {
    if (round.signal.aborted) return;
    document.documentElement.dataset.fit = "ready";
    const told = failure(error, settings, { retry: again, onplain: (subject) => withoutSettings(settings, subject) });
    place.replaceChildren(told.node);
    if (isAgain || error.name === "AbortError") keepFocus(told.heading);
  }
}

/** Who pressed "Try again" or "Cancel", which are gone now, is led to what came of it. */
function keepFocus(node) {
  if (document.activeElement === document.body) node.focus({ preventScroll: true });
}

/** The question without what could not be used of it. */
function withoutSettings(settings, subject) {
  if (subject === "settings") go(linkTo(settings.ref));
  else if (subject === "machine") machine.set();
  else {
    machine.set();
    go(linkTo(settings.ref));
  }
}

function render(root, params, context) {
  const settings = new Settings(params, machine);
  const place = el("div", { class: "answer-place" });
  if (settings.ref && settings.chosen.engine?.toLowerCase() === "all") return compare(settings);
  const title = settings.name || MODEL.title;
  if (settings.name) document.title = SHELL.title(settings.name);
  root.append(
    el("div", { class: "model-head" }, el("div", {}, el("h1", { text: title }), el("p", { class: "muted model-facts", text: settings.ref ? "" : MODEL.lead })), machinePicker(context.signal)),
    box(settings.ref),
    place,
  );
  if (!settings.ref) {
    place.append(welcome());
    document.documentElement.dataset.fit = "ready";
    return null;
  }
  return answer(place, settings, context);
}

route("/model", { title: SHELL.pages.model, render });
