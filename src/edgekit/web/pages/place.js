// How far down a page was looked at: kept with its step of the history, found again when it is drawn anew.

const REST_MS = 150; // after the last movement: browsers take no more than some writes a second
const ANCHORS = "[data-id]"; // rows of models: what is above them may be taller or shorter the next time
const DRAWN = { subtree: true, childList: true, attributeFilter: ["aria-busy", "hidden"] };
const TAKEN_OVER = ["wheel", "touchstart", "pointerdown", "keydown"]; // a person moves by themselves
let isPending = false; // a place is still to be found: nothing else is written over it
let timer = 0;

const topOf = (node) => node.getBoundingClientRect().top;

/** Where the page stands now, into its step of the history. */
export function keepPlace() {
  clearTimeout(timer);
  if (isPending) return;
  const first = [...document.querySelectorAll(ANCHORS)].find((node) => node.getBoundingClientRect().bottom > 0);
  const anchor = first ? { id: first.dataset.id, top: topOf(first) } : null;
  history.replaceState({ ...history.state, place: { y: scrollY, anchor } }, "");
}

/** Moves there as soon as the page is drawn, unless a person has moved meanwhile; a new page begins at its top. */
export function findPlace(root, signal) {
  const { place } = history.state ?? {};
  isPending = Boolean(place?.y);
  if (!isPending) {
    if (!location.hash) scrollTo(0, 0); // else the browser goes to what it names
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
    // what is in view now has its own height, and the rows near it are in the document
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

/** From now on the browser leaves it to us: it would move before anything is drawn. */
export function watchPlace() {
  history.scrollRestoration = "manual";
  addEventListener("scroll", () => {
    clearTimeout(timer);
    timer = setTimeout(keepPlace, REST_MS);
  });
  addEventListener("pagehide", keepPlace);
}
