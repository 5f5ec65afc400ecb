// The dialog that shares an answer: its picture, a link, files, and a badge for a model card.

import { query } from "./api.js";
import { copy, el } from "./dom.js";
import { COMMON, SHARE } from "./texts.js";

const [WIDTH, HEIGHT] = [1200, 630];

const theme = () => document.documentElement.dataset.theme;

function save(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The picture as the server draws it. */
async function pictureText(address) {
  const reply = await fetch(address);
  const text = await reply.text();
  if (!reply.ok) throw new Error(SHARE.noPreview);
  return text;
}

/** SVG -> PNG, drawn by the browser. */
async function png(address) {
  const url = URL.createObjectURL(new Blob([await pictureText(address)], { type: "image/svg+xml" }));
  try {
    const image = el("img", { width: WIDTH, height: HEIGHT, src: url });
    await image.decode();
    const canvas = el("canvas", { width: WIDTH, height: HEIGHT });
    canvas.getContext("2d").drawImage(image, 0, 0, WIDTH, HEIGHT);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(url);
  }
}

const svgBlob = async (address) => new Blob([await pictureText(address)], { type: "image/svg+xml" });

/** A button that ignores clicks while f runs; not disabled, so that it keeps the focus. */
function busyButton(text, f, className) {
  const button = el("button", { type: "button", class: className, text });
  button.addEventListener("click", async () => {
    if (button.ariaBusy === "true") return;
    button.ariaBusy = "true";
    await f(button);
    button.ariaBusy = null;
  });
  return button;
}

/**
 * Opens the dialog. fields: of the check; name: of the files; title, machine: for the badge; command: `edgekit share`;
 * answer(): a promise of the content of the JSON file.
 */
export function openShare({ fields, name, title, machine, command, answer }) {
  const address = `/picture.svg${query({ ...fields, theme: theme() })}`;
  const fault = el("p", { class: "error", role: "alert", hidden: true });
  const tell = (message) => {
    fault.textContent = message;
    fault.hidden = false;
  };
  const saving = (f, type) => async () => {
    fault.hidden = true;
    try {
      save(await f(), `${name}.${type}`);
    } catch (error) {
      tell(SHARE.failed(error.message));
    }
  };
  const json = async () => {
    const found = await answer();
    if (!found) throw new Error(SHARE.nothing);
    return new Blob([JSON.stringify(found, null, 2)], { type: "application/json" });
  };
  const picture = el("img", { src: address, width: WIDTH, height: HEIGHT, alt: SHARE.preview });
  picture.addEventListener("error", () => tell(SHARE.noPreview));
  const close = el("button", { type: "button", class: "quiet", "aria-label": SHARE.close, text: SHARE.closeShort });
  const badge = SHARE.badgeText(title, machine);
  const node = el(
    "dialog",
    { class: "share", "aria-label": SHARE.title },
    el("div", { class: "row spread" }, el("h2", { text: SHARE.title }), close),
    picture,
    fault,
    el(
      "div",
      { class: "buttons" },
      busyButton(SHARE.link, (button) => copy(location.href, button), "primary"),
      busyButton(SHARE.png, saving(() => png(address), "png")),
      busyButton(SHARE.svg, saving(() => svgBlob(address), "svg")),
      busyButton(SHARE.json, saving(json, "json")),
      busyButton(SHARE.badge, (button) => copy(badge, button)),
    ),
    el("p", { class: "muted small", text: SHARE.linkHint }),
    el("p", { class: "muted small", text: SHARE.badgeHint }),
    el("div", { class: "command-box" }, commandBox(command), copyButton(command)),
  );
  close.addEventListener("click", () => node.close());
  node.addEventListener("click", (event) => event.target === node && node.close()); // outside the box
  node.addEventListener("close", () => node.remove());
  document.getElementById("main").append(node);
  node.showModal();
  return node;
}

const commandBox = (command) => el("pre", { tabIndex: 0, "aria-label": SHARE.command }, el("code", { text: command }));

function copyButton(command) {
  const button = el("button", { type: "button", class: "copy", text: COMMON.copy });
  button.addEventListener("click", () => copy(command, button));
  return button;
}
