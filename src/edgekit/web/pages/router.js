// Shows the page of the address, with the History API: one page at a time.

import { findPlace, keepPlace, watchPlace } from "./place.js";
import { SHELL } from "./texts.js";

const routes = new Map();
const travellers = []; // parameters that every address carries: {enter(params), write(params)}
const MACHINE_FREE = new Set(["/api/docs"]);
const listeners = []; // called with the path of each page that is shown
let leaving = null; // AbortController of the page that is shown
let shown = ""; // its address, without the hash

/** route("/model", {title: "Model", render(root, params, {signal}), renews: false}). */
export function route(path, page) {
  routes.set(path, page);
}

/** Draws the page again, unless it updates itself (renews: true). */
export function renew() {
  if (!routes.get(location.pathname)?.renews) show();
}

/** Something every page's address carries (the chosen machine). */
export function travel(traveller) {
  travellers.push(traveller);
}

/** Calls f(path) whenever a page is shown. */
export function onShow(f) {
  listeners.push(f);
}

/** An address of this site with the shared parameters, unless it has them itself. */
export function addressOf(url) {
  const address = new URL(url, location.origin);
  if (MACHINE_FREE.has(address.pathname)) return address;
  for (const one of travellers) one.write(address.searchParams, { isForced: false });
  return address;
}

/** Goes to another page, or to the same one with other parameters. */
export function go(url) {
  const address = addressOf(url);
  if (!routes.has(address.pathname)) return location.assign(address); // its module is still loading
  keepPlace();
  history.pushState(null, "", address);
  show({ isNavigation: true });
}

/** Replaces the page's parameters in the address, without a history entry; the machine's stay. */
export function replaceQuery(params) {
  const address = new URL(location.href);
  address.search = new URLSearchParams(params).toString();
  for (const one of travellers) one.write(address.searchParams, { isForced: true });
  if (address.href !== location.href) history.replaceState(history.state, "", address);
  shown = whole();
}

const whole = () => location.pathname + location.search;

/** Draws the page of the address. */
export function show({ isNavigation = false } = {}) {
  leaving?.abort();
  leaving = new AbortController();
  shown = whole();
  const params = new URLSearchParams(location.search);
  for (const one of travellers) one.enter(params);
  const page = routes.get(location.pathname) ?? routes.get("/");
  const root = document.getElementById("main");
  const isInside = root.contains(document.activeElement); // then the heading of the new page gets the focus
  root.replaceChildren();
  document.title = SHELL.title(page.title);
  mark(location.pathname);
  for (const f of listeners) f(location.pathname);
  const { signal } = leaving;
  new Promise((done) => done(page.render(root, params, { signal }))).catch(report(root));
  if (isNavigation || isInside) greet(root);
  findPlace(root, leaving.signal);
}

/** Shows the error of a page that cannot be drawn. */
function report(root) {
  return (error) => {
    if (error.name === "AbortError") return;
    console.error(error);
    const line = document.createElement("p");
    line.className = "error";
    line.setAttribute("role", "alert");
    line.textContent = error.message;
    root.append(line);
  };
}

/** Focuses the heading, so that screen readers start there. */
function greet(root) {
  const heading = root.querySelector("h1");
  if (!heading) return;
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
}

function mark(path) {
  for (const link of document.querySelectorAll("nav.pages a")) {
    if (new URL(link.href).pathname === path) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function isOurs(event, link) {
  const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  const isHere = link && !link.target && !link.hasAttribute("download") && link.origin === location.origin;
  return isPlain && isHere && !event.defaultPrevented && routes.has(link.pathname) && !isJump(link);
}

const isJump = (link) => link.getAttribute("href").startsWith("#");

/** Follows links within this site without reloading. */
export function listen() {
  watchPlace();
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!isOurs(event, link)) return;
    event.preventDefault();
    go(link.href);
  });
  addEventListener("popstate", () => {
    if (!routes.has(location.pathname)) location.reload(); // its module is still loading
    else if (whole() !== shown) show({ isNavigation: true });
    else if (history.state?.place) findPlace(document.getElementById("main"), leaving.signal); // back from a jump
  });
}
