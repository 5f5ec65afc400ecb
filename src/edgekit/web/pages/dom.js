// Builds DOM nodes. Text is always inserted as text, never as markup.

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

/** A box that scrolls sideways, also by keyboard, for content wider than the page. */
export function scrollRoom(label, ...children) {
  return el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label }, ...children);
}

/** A table in a box that scrolls sideways. */
export function scrollTable(label, className, columns, body) {
  const head = columns.map((one) => el("th", { scope: "col", class: one.class }, one.text ?? one));
  return scrollRoom(label, el("table", { class: className }, el("thead", {}, el("tr", {}, head)), body));
}

/** An error message and a "Try again" button. */
export function fault(message, retry) {
  const again = el("button", { type: "button", text: COMMON.tryAgain });
  again.addEventListener("click", () => {
    again.ariaBusy = "true"; // the button stays until the answer comes
    retry();
  });
  return [el("p", { text: message }), again];
}

/** Replaces the children. If one of them had the focus, it moves to the first new button, else to `next`. */
export function refill(node, children, next) {
  const isInside = node.contains(document.activeElement);
  node.replaceChildren(...children);
  if (isInside) (node.querySelector("button") ?? next).focus({ preventScroll: true });
}

/** Announces the text to screen readers. */
export function announce(text) {
  const region = document.getElementById("announcer");
  region.textContent = "";
  requestAnimationFrame(() => (region.textContent = text));
}

/** Copies without the clipboard API, which needs https or localhost, and permission. */
function copyBySelection(text) {
  const area = el("textarea", { class: "offscreen", value: text, readOnly: true });
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  return isDone;
}

/** Copies the text to the clipboard. The button shows whether it worked. */
export async function copy(text, button) {
  let isDone = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    isDone = copyBySelection(text);
  }
  const message = isDone ? COMMON.copied : COMMON.copyFailed;
  announce(message);
  if (button) flash(button, message);
}

/** Shows the message on the button for a moment. */
function flash(button, message) {
  button.dataset.label ??= button.textContent;
  button.textContent = message;
  clearTimeout(Number(button.dataset.timer));
  button.dataset.timer = setTimeout(() => (button.textContent = button.dataset.label), 1600);
  button.focus?.();
}

/** A function that calls f in the next animation frame, at most once per frame. */
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
