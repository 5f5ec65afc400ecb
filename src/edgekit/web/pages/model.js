// The page of one model: its name, the answer, how to run it; live with every setting.

import { call, connection, query } from "./api.js";
import { announce, el } from "./dom.js";
import { COMPARED } from "./engines.js";
import { finder } from "./finder.js";
import { machine, machinePicker } from "./machine.js";
import { modelHead } from "./model_head.js";
import { ModelView } from "./model_view.js";
import { failure, open } from "./opening.js";
import { addressOf, go, route } from "./router.js";
import { Settings } from "./settings.js";
import { MODEL, SHELL } from "./texts.js";

const EXAMPLES = [
  [MODEL.welcome.index, ["qwen3-8b", "gemma-3-27b", "deepseek-v3"]],
  [MODEL.welcome.repository, ["Qwen/Qwen3-8B", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"]],
  [MODEL.welcome.url, ["https://huggingface.co/Qwen/Qwen3-8B-GGUF/resolve/main/Qwen3-8B-Q4_K_M.gguf"]],
  [MODEL.welcome.sample, ["sample:qwen3-30b-a3b"]],
];
const NAME = /^(?:catalog:)?([\w.-]+)$/;
const REPOSITORY = /^(?:hf\.co\/|https:\/\/huggingface\.co\/)?([\w.-]+\/[\w.-]+?)(?:[:@][\w.-]+)?$/;

const linkTo = (ref) => `/model?ref=${encodeURIComponent(ref)}`;

/** The page without a model: a large search box and examples. */
function welcome(signal) {
  const { node } = finder({ label: MODEL.finder, isLarge: true, onpick: (ref) => go(linkTo(ref)), signal });
  const [before, command, after] = MODEL.welcome.file;
  const example = (ref) => el("a", { href: linkTo(ref) }, el("code", { text: ref }));
  const rows = EXAMPLES.map(([text, refs]) => el("li", {}, el("p", { text }), refs.map(example)));
  const file = el("p", {}, before, el("code", { text: command }), after);
  return [
    el("h1", { text: MODEL.title }),
    el("p", { class: "lead", text: MODEL.lead }),
    node,
    machinePicker(signal),
    el(
      "section",
      { class: "panel welcome", "aria-labelledby": "welcome-title" },
      el("h2", { id: "welcome-title", text: MODEL.welcome.title }),
      el("p", { text: MODEL.welcome.lead }),
      el("ul", { class: "examples" }, rows, el("li", {}, file, el("code", { text: "model.gguf" }))),
      el("p", {}, el("a", { href: "/", text: MODEL.welcome.all })),
    ),
  ];
}

const isSparse = (entry) => (entry.active_parameters ?? entry.parameters) < entry.parameters;

/** Facts that are not in the check: names, licence, and whether the model has experts. */
async function factsOf(ref, check, signal) {
  const id = check.from_index ? check.model : NAME.exec(ref)?.[1];
  if (id && !(check.reference.includes("/") && !check.from_index)) {
    const entry = await call(`catalog/${id}`, {}, { signal }).catch(() => null);
    if (entry) return { ...entry, experts: isSparse(entry) };
  }
  const found = await call("inspect", { model: ref }, { signal }).catch(() => null);
  const repository = REPOSITORY.exec(ref)?.[1] ?? null;
  const { parameters, active_parameters, experts } = found ?? {};
  const isOfHub = repository !== null && !check.from_index;
  return {
    parameters,
    active_parameters: experts?.count > 0 ? active_parameters : null, // null: every layer is dense
    experts: experts?.count > 0,
    repository: isOfHub ? repository : null,
    publisher: isOfHub ? repository.split("/")[0] : null,
  };
}

/** Removes a list of engines: this page has one. */
function compare({ ref, chosen }) {
  const fields = { ref: COMPARED.map(() => ref), engine: COMPARED.join(",") };
  location.replace(addressOf(`/compare${query(fields)}&context=${encodeURIComponent(chosen.context ?? "")}`));
}

/** The first answer. If the machine changes before it comes, or after it failed, it starts again. */
async function answer(place, head, settings, context, isAgain = false) {
  const round = new AbortController();
  context.signal.addEventListener("abort", () => round.abort(), { once: true });
  const again = () => {
    round.abort();
    answer(place, head, settings, context, true);
  };
  machine.addEventListener("change", again, { signal: round.signal });
  document.documentElement.dataset.fit = "busy";
  try {
    const further = (found, signal) => factsOf(settings.ref, found, signal);
    const { check, facts } = await open(place, settings.checkFields(), { signal: round.signal, further });
    if (round.signal.aborted) return;
    machine.removeEventListener("change", again); // the view listens from here on
    head.show(facts);
    const view = new ModelView(settings, facts, context.signal);
    await view.begin(check);
    if (context.signal.aborted) return;
    const isLeft = place.contains(document.activeElement); // its button goes
    place.replaceChildren(view.node);
    if (isAgain || isLeft) keepFocus(view.head);
    announce(MODEL.answered(settings.name));
  } catch (error) {
    if (round.signal.aborted) return;
    connection.addEventListener("back", again, { signal: round.signal });
    document.documentElement.dataset.fit = "ready";
    const ways = { retry: again, onplain: (subject) => withoutSettings(settings, subject), onram: withRam };
    const told = failure(error, settings, ways);
    place.replaceChildren(told.node);
    if (isAgain || error.name === "AbortError") keepFocus(told.heading);
  }
}

const withRam = (ram) => machine.set({ device: machine.device, vram: machine.vram, cpu: machine.cpu, ram });

/** Moves the focus from "Try again" or "Cancel", which are gone, to the result. */
function keepFocus(node) {
  if (document.activeElement === document.body) node.focus({ preventScroll: true });
}

/** Loads the page without the invalid part of the link. */
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
  if (!settings.ref) {
    root.append(el("div", { class: "model-welcome" }, welcome(context.signal)));
    document.documentElement.dataset.fit = "ready";
    return null;
  }
  if (settings.chosen.engine?.toLowerCase() === "all") return compare(settings);
  document.title = SHELL.title(settings.name);
  const head = modelHead(settings.name, context.signal);
  const place = el("div", { class: "answer-place" });
  root.append(head.node, place);
  return answer(place, head, settings, context);
}

route("/model", { title: SHELL.pages.model, render, renews: true });
