// The shell around every page: address, search box, theme, and whether the server is there.

export { go, replaceQuery, route } from "./router.js";

import { connection } from "./api.js";
import { announce } from "./dom.js";
import { go, listen, show } from "./router.js";
import { SHELL } from "./texts.js";
import "./machine.js";
import "./home.js";

const LATER = {
  "/model": () => import("./model.js"),
  "/compare": () => import("./compare.js"),
  "/hardware": () => import("./hardware.js"),
  "/api/docs": () => import("./docs.js"),
};
const THEMES = ["auto", "light", "dark"];

function keptTheme() {
  try {
    return localStorage.getItem("edgekit-theme");
  } catch {
    return null; // storage is switched off: auto
  }
}

function setTheme(theme, button) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.querySelector(".theme-name").textContent = SHELL.themes[theme];
  button.dataset.theme = theme;
  button.setAttribute("aria-label", SHELL.theme(SHELL.themes[theme]));
  try {
    localStorage.setItem("edgekit-theme", theme);
  } catch {
    // not kept, only used
  }
}

function startTheme() {
  const button = document.getElementById("theme");
  const kept = keptTheme();
  setTheme(THEMES.includes(kept) ? kept : "auto", button);
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(button.dataset.theme) + 1) % THEMES.length];
    setTheme(next, button);
    announce(SHELL.theme(SHELL.themes[next]));
  });
}

function startSearch() {
  const form = document.getElementById("open");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const said = form.elements.ref.value.trim();
    if (!said) return;
    form.elements.ref.value = "";
    go(`/model?ref=${encodeURIComponent(said)}`);
  });
}

function tell(banner, text, kind) {
  banner.textContent = text;
  banner.dataset.kind = kind;
  banner.hidden = false;
}

/** Says that the server is gone, and draws the page again when it is back. */
function startBanner() {
  const banner = document.getElementById("banner");
  connection.addEventListener("lost", () => tell(banner, SHELL.serverStopped, "lost"));
  connection.addEventListener("back", () => {
    tell(banner, SHELL.serverBack, "back");
    setTimeout(() => (banner.hidden = !connection.isLost), 4000);
    show();
    reloadIfUpdated();
  });
}

/** Loads the page again if the server now has another version of it (404), or wants a new token (401). */
async function reloadIfUpdated() {
  const reply = await fetch(import.meta.url, { method: "HEAD", cache: "no-store" }).catch(() => null);
  if (reply?.status === 404 || reply?.status === 401) location.reload();
}

/** The page that was asked for first, the others while it is looked at. */
async function start() {
  await LATER[location.pathname]?.();
  show();
  await Promise.all(Object.values(LATER).map((load) => load()));
}

function reportStart(error) {
  console.error(error);
  reloadIfUpdated();
}

startTheme();
startSearch();
startBanner();
listen();
start().catch(reportStart);
