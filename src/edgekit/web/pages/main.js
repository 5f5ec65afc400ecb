// The shell around every page: search box, theme, and whether the server answers.

export { go, replaceQuery, route } from "./router.js";

import { connection } from "./api.js";
import { announce } from "./dom.js";
import { finder } from "./finder.js";
import { go, listen, onShow, renew, show } from "./router.js";
import { FINDER, SHELL } from "./texts.js";
import "./machine.js";
import "./home.js";

const LATER = {
  "/model": () => import("./model.js"),
  "/compare": () => import("./compare.js"),
  "/hardware": () => import("./hardware.js"),
  "/api/docs": () => import("./docs.js"),
};
const THEMES = ["auto", "light", "dark"];

/** The button steps through the themes; theme.js keeps the choice and sets the colours. */
function startTheme() {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const show = () => {
    const name = SHELL.themes[root.dataset.themeChoice];
    button.querySelector(".theme-name").textContent = name;
    button.setAttribute("aria-label", SHELL.theme(name));
    return name;
  };
  button.addEventListener("click", () => {
    const detail = THEMES[(THEMES.indexOf(root.dataset.themeChoice) + 1) % THEMES.length];
    root.dispatchEvent(new CustomEvent("themechoice", { detail }));
    announce(SHELL.theme(show()));
  });
  show();
}

/** The search box of every page but the home page, which has its own. */
function startSearch() {
  const place = document.getElementById("top-find");
  const { node, input } = finder({
    label: FINDER.label,
    onpick: (reference) => {
      input.value = "";
      go(`/model?ref=${encodeURIComponent(reference)}`);
    },
  });
  place.append(node);
  onShow((path) => (place.hidden = path === "/"));
}

function tell(banner, text, kind) {
  banner.textContent = text;
  banner.dataset.kind = kind;
  banner.hidden = false;
}

/** Shows a banner while the server does not answer; draws the page again when it is back. */
function startBanner() {
  const banner = document.getElementById("banner");
  connection.addEventListener("lost", () => tell(banner, SHELL.serverStopped, "lost"));
  connection.addEventListener("back", () => {
    tell(banner, SHELL.serverBack, "back");
    setTimeout(() => (banner.hidden = !connection.isLost), 4000);
    renew();
    reloadIfUpdated();
  });
}

/** Loads the page again if the server now has another version of it (404), or wants a new token (401). */
async function reloadIfUpdated() {
  const reply = await fetch(import.meta.url, { method: "HEAD", cache: "no-store" }).catch(() => null);
  if (reply?.status === 404 || reply?.status === 401) location.reload();
}

/** Loads the requested page first, the other pages afterwards. */
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
