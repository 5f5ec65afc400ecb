// Saves the scroll position of each history entry, and restores it when the page is drawn again.

const REST_MS = 150; // after the last scroll event: browsers limit the writes per second
const ANCHORS = "[data-id]"; // rows of models: the height of what is above them may change
const DRAWN = { subtree: true, childList: true, attributeFilter: ["aria-busy", "hidden"] };
const TAKEN_OVER = ["wheel", "touchstart", "pointerdown", "keydown"]; // the user scrolls
let isPending = false; // a position is being restored: do not overwrite it
let timer = 0;

const topOf = (node) => node.getBoundingClientRect().top;

/** Saves the current position in the history entry. */
export function keepPlace() {
  clearTimeout(timer);
  if (isPending) return;
  const first = [...document.querySelectorAll(ANCHORS)].find((node) => node.getBoundingClientRect().bottom > 0);
  const anchor = first ? { id: first.dataset.id, top: topOf(first) } : null;
  history.replaceState({ ...history.state, place: { y: scrollY, anchor } }, "");
}

/** Restores the position when the page is drawn, unless the user has scrolled. A new page starts at its top. */
export function findPlace(root, signal) {
  const { place } = history.state ?? {};
  isPending = Boolean(place?.y);
  if (!isPending) {
    if (!location.hash) scrollTo(0, 0); // else the browser scrolls to the hash
    return;
  }
  const watch = new MutationObserver(() => look());
  const end = () => {
    isPending = false;
    watch.disconnect();
    for (const name of TAKEN_OVER) removeEventListener(name, end, true);
  };
  const look = () => {
    if (!isDrawn(place, root)) return;
    end();
    moveTo(place, root);
    // now the rows in view have their final height
    requestAnimationFrame(() => !signal.aborted && anchorOf(place, root) && moveTo(place, root));
  };
  for (const name of TAKEN_OVER) addEventListener(name, end, true);
  signal.addEventListener("abort", end);
  watch.observe(root, DRAWN);
  look();
}

function anchorOf({ anchor }, root) {
  const node = anchor && root.querySelector(`[data-id="${CSS.escape(anchor.id)}"]`);
  return node?.checkVisibility() ? node : null;
}

function isDrawn(place, root) {
  if (root.querySelector('[aria-busy="true"]')) return false;
  return anchorOf(place, root) !== null || document.documentElement.scrollHeight - innerHeight >= place.y;
}

function moveTo(place, root) {
  const node = anchorOf(place, root);
  if (node) scrollBy(0, topOf(node) - place.anchor.top);
  else scrollTo(0, place.y);
}

/** Turns off the browser's own restoration, which happens before anything is drawn. */
export function watchPlace() {
  history.scrollRestoration = "manual";
  addEventListener("scroll", () => {
    clearTimeout(timer);
    timer = setTimeout(keepPlace, REST_MS);
  });
  addEventListener("pagehide", keepPlace);
}
