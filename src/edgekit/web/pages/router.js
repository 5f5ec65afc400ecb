// Which page an address means: History API, links of this site, one page at a time.

import { findPlace, keepPlace, watchPlace } from "./place.js";
import { SHELL } from "./texts.js";

const routes = new Map();
const travellers = []; // what goes along from page to page: {enter(params), write(params)}
const MACHINE_FREE = new Set(["/api/docs"]);
const listeners = []; // called with the path of each page that is shown
let leaving = null; // AbortController of the page that is shown
let shown = ""; // its address, without the place in it

/** route("/model", {title: "Model", render(root, params, {signal}), renews: false}). */
export function route(path, page) {
  routes.set(path, page);
}

/** Draws the page again, unless it brings itself up to date: {..., renews: true}. */
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

/** An address of this site with what travels along, unless it says so itself. */
export function addressOf(url) {
  const address = new URL(url, location.origin);
  if (MACHINE_FREE.has(address.pathname)) return address;
  for (const one of travellers) one.write(address.searchParams, { isForced: false });
  return address;
}

/** Goes to another page, or to the same one with other parameters. */
export function go(url) {
  const address = addressOf(url);
  if (!routes.has(address.pathname)) return location.assign(address); // its module is still on the way
  keepPlace();
  history.pushState(null, "", address);
  show({ isNavigation: true });
}

/** The page's own parameters into the address, without a step back; the machine's are kept. */
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
  const isInside = root.contains(document.activeElement); // who was in the page begins at the heading of the new one
  root.replaceChildren();
  document.title = SHELL.title(page.title);
  mark(location.pathname);
  for (const f of listeners) f(location.pathname);
  const { signal } = leaving;
  new Promise((done) => done(page.render(root, params, { signal }))).catch(report(root));
  if (isNavigation || isInside) greet(root);
  findPlace(root, leaving.signal);
}

/** A page that breaks says so, instead of staying empty. */
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

/** The heading gets the focus, so that a reader begins there. */
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

/** Links of this site change the page without loading it again. */
export function listen() {
  watchPlace();
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!isOurs(event, link)) return;
    event.preventDefault();
    go(link.href);
  });
  addEventListener("popstate", () => {
    if (!routes.has(location.pathname)) location.reload(); // its module is still on the way
    else if (whole() !== shown) show({ isNavigation: true });
    else if (history.state?.place) findPlace(document.getElementById("main"), leaving.signal); // back from a jump
  });
}
