// Vectors in Node, from a model that never enters Node's memory: `edgekit embed MODEL --stdio` is the other end.
//
//   node embed.mjs model.gguf < texts.txt
//
// prints one line of JSON for each line of text. Plain Node 18 or later, no packages. docs/embed.md has the
// protocol; EDGEKIT names the command where it is not on the PATH.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

export class Embedder {
  #child;
  #waiting = new Map(); // request id -> { resolve, reject }
  #next = 1;
  #ended = null; // why nothing can be asked any more

  static async open(model, options = [], command = (process.env.EDGEKIT ?? "edgekit").split(" ")) {
    const embedder = new Embedder();
    await embedder.#start(command, ["embed", model, "--stdio", ...options]);
    return embedder;
  }

  /** Float32Array for each text. `deadlineMs` and an AbortSignal end it early, with an error. */
  async embed(texts, { prefix, deadlineMs, signal } = {}) {
    signal?.throwIfAborted();
    if (this.#ended !== null) throw this.#ended;
    const id = this.#next++;
    const answer = new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
    answer.catch(() => {}); // whoever called us hears of it below
    const cancel = () => this.#send({ id, cancel: true });
    signal?.addEventListener("abort", cancel, { once: true });
    try {
      await this.#send({ id, texts, prefix, deadline_ms: deadlineMs, encoding: "base64" });
      const { vectors } = await answer;
      return vectors.map(unpack);
    } finally {
      signal?.removeEventListener("abort", cancel);
    }
  }

  /** Ends when everything that was asked for is answered. */
  async close() {
    if (this.#ended !== null) return;
    const ended = once(this.#child, "close");
    this.#child.stdin.end();
    await ended;
  }

  async #start([program, ...first], words) {
    this.#child = spawn(program, [...first, ...words], { stdio: ["pipe", "pipe", "inherit"] });
    const lines = createInterface({ input: this.#child.stdout, crlfDelay: Infinity });
    const ready = new Promise((resolve, reject) => this.#waiting.set("ready", { resolve, reject }));
    lines.on("line", (line) => this.#take(JSON.parse(line)));
    this.#child.stdin.on("error", () => {}); // it has ended: "close" tells everybody who waits
    this.#child.on("error", (error) => this.#fail(error));
    this.#child.on("close", (code) => this.#fail(new Error(`edgekit has ended with code ${code}`)));
    Object.assign(this, await ready); // dimensions, limits, plan ...
  }

  #take(answer) {
    const key = answer.ready ? "ready" : answer.id;
    const waiting = this.#waiting.get(key);
    this.#waiting.delete(key);
    if (answer.error === undefined) waiting?.resolve(answer);
    else waiting?.reject(Object.assign(new Error(answer.error.message), { type: answer.error.type }));
  }

  #fail(error) {
    this.#ended ??= error;
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }

  async #send(request) {
    // A pipe that is full means that enough is under way: wait, and memory stays small.
    if (!this.#child.stdin.write(JSON.stringify(request) + "\n")) {
      await Promise.race([once(this.#child.stdin, "drain"), once(this.#child, "close")]);
    }
  }
}

function unpack(text) {
  const bytes = Uint8Array.from(Buffer.from(text, "base64")); // a copy: floats need an aligned place
  return new Float32Array(bytes.buffer);
}

async function main([model, ...options]) {
  const embedder = await Embedder.open(model, options);
  const rows = [];
  for await (const text of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    rows.push(text);
    if (rows.length === 32) await print(embedder, rows.splice(0));
  }
  if (rows.length > 0) await print(embedder, rows);
  await embedder.close();
}

async function print(embedder, texts) {
  const vectors = await embedder.embed(texts);
  const lines = texts.map((text, place) => JSON.stringify({ text, vector: Array.from(vectors[place]) }));
  if (!process.stdout.write(lines.join("\n") + "\n")) await once(process.stdout, "drain");
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  if (process.argv.length < 3) {
    console.error("usage: node embed.mjs MODEL [options of edgekit embed] < texts.txt");
    process.exit(2);
  }
  try {
    await main(process.argv.slice(2));
  } catch (error) {
    console.error(error.message);
    process.exit(1);
  }
}
