// What the engines are called, everywhere on the page.

/** Names of the flags -> words; the last is EdgeKit's own. */
export const ENGINE_NAMES = { "llama.cpp": "llama.cpp", vllm: "vLLM", mlx: "MLX", stream: "stream (built in)" };

/** Those that the catalog is planned for, and that are compared. */
export const COMPARED = ["llama.cpp", "vllm", "mlx"];

/** "llama.cpp 0.5.0", "mlx-lm 0.32.2 (MLX 0.32.4)": a version that names its program says it all. */
export function engineWords({ name, version }) {
  if (!version) return ENGINE_NAMES[name] ?? name;
  return /^[a-z]/i.test(version) ? version : `${ENGINE_NAMES[name] ?? name} ${version}`;
}
