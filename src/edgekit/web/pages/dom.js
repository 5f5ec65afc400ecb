// Nodes from plain values: text is always text, never markup.

import { COMMON } from "./texts.js";

const SVG = "http://www.w3.org/2000/svg";
const READ_ONLY = new Set(["list", "form"]); // properties that only their attribute can set

function put(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "text") node.textContent = value;
  else if (name === "class") node.setAttribute("class", value);
  else if (name.startsWith("on")) node.addEventListener(name.slice(2).toLowerCase(), value);
  else if (name in node && node.namespaceURI !== SVG && !READ_ONLY.has(name)) node[name] = value;
  else node.setAttribute(name, value === true ? "" : value);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) put(node, name, value);
  node.append(...children.flat(Infinity).filter((child) => child || child === 0 || child === ""));
  return node;
}

/** el("a", {href: "/", class: "name", onclick: f}, "text", node). */
export function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

/** Room for something that may be wider than the page: it can be moved sideways, by keys too. */
export function scrollRoom(label, ...children) {
  return el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label }, ...children);
}

/** A table in such a room. */
export function scrollTable(label, className, columns, body) {
  const head = columns.map((one) => el("th", { scope: "col", class: one.class }, one.text ?? one));
  return scrollRoom(label, el("table", { class: className }, el("thead", {}, el("tr", {}, head)), body));
}

/** What went wrong, and a way to try again. */
export function fault(message, retry) {
  const again = el("button", { type: "button", text: COMMON.tryAgain });
  again.addEventListener("click", () => {
    again.ariaBusy = "true"; // it stays until there is an answer
    retry();
  });
  return [el("p", { text: message }), again];
}

/** New children. Who was in the old ones is led to their first button, or to `next`, instead of to nowhere. */
export function refill(node, children, next) {
  const isInside = node.contains(document.activeElement);
  node.replaceChildren(...children);
  if (isInside) (node.querySelector("button") ?? next).focus({ preventScroll: true });
}

/** Says it to those who listen instead of look. */
export function announce(text) {
  const region = document.getElementById("announcer");
  region.textContent = "";
  requestAnimationFrame(() => (region.textContent = text));
}

/** Without permission or https there is still the old way. */
function copyBySelection(text) {
  const area = el("textarea", { class: "offscreen", value: text, readOnly: true });
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  return isDone;
}

/** Puts text on the clipboard; the button says how it went. */
export async function copy(text, button) {
  let isDone = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    isDone = copyBySelection(text);
  }
  const told = isDone ? COMMON.copied : COMMON.copyFailed;
  announce(told);
  if (button) flash(button, told);
}

function flash(button, told) {
  button.dataset.said ??= button.textContent;
  button.textContent = told;
  clearTimeout(Number(button.dataset.timer));
  button.dataset.timer = setTimeout(() => (button.textContent = button.dataset.said), 1600);
  button.focus?.();
}

/** Calls f at most once per animation frame, however often it is asked to. */
export function oncePerFrame(f) {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      f();
    });
  };
}
