// The head of the model page: what the model is, who made it, and the machine it is checked on.

import { el } from "./dom.js";
import { withoutMarks } from "./format.js";
import { machinePicker } from "./machine.js";
import { COMMON, MODEL, SHELL } from "./texts.js";

const HUB = "https://huggingface.co/";
const HUB_ID = /^[\w.-]+\/[\w.-]+$/;

/** The model's page on the hub. */
function hubLink(repository) {
  if (!HUB_ID.test(repository ?? "")) return null;
  const props = { href: HUB + repository, target: "_blank", rel: "noopener" };
  return el("a", { ...props, text: MODEL.hub, "aria-label": MODEL.hubLink(repository) });
}

const isSparse = ({ parameters, active_parameters: active }) => Boolean(active && active < parameters);

/** {node, show(facts)}: the title, and the line below it once the facts are known. */
export function modelHead(name, signal) {
  const title = el("h1", { text: name });
  const line = el("p", { class: "model-facts" });
  const picker = el(
    "div",
    { class: "model-machine" },
    el("span", { class: "muted", text: MODEL.on }),
    machinePicker(signal),
  );
  const show = (facts) => {
    title.textContent = withoutMarks(facts.title ?? name);
    document.title = SHELL.title(title.textContent);
    const parts = [
      ["publisher", facts.publisher],
      ["parameters", facts.parameters && COMMON.parameters(facts.parameters)],
      ["active", isSparse(facts) && COMMON.active(facts.active_parameters)],
      ["licence", facts.licence && MODEL.licence(facts.licence)],
      ["hub", hubLink(facts.repository)],
    ].filter(([, part]) => part);
    const nodes = parts.map(([name, part], at) => el("span", { class: `fact-${name}` }, at ? " · " : "", part));
    line.replaceChildren(...nodes);
  };
  return { node: el("header", { class: "model-head" }, title, line, picker), show, title };
}
