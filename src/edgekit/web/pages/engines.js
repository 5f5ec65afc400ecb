// The engines that are compared, and what an engine with its version is called.

import { ENGINE_NAMES } from "./texts.js";

/** The engines that the catalog is checked for. */
export const COMPARED = ["llama.cpp", "vllm", "mlx"];

/** "llama.cpp 0.5.0", "mlx-lm 0.32.2 (MLX 0.32.4)": a version that names its program says it all. */
export function engineWords({ name, version }) {
  if (!version) return ENGINE_NAMES[name] ?? name;
  return /^[a-z]/i.test(version) ? version : `${ENGINE_NAMES[name] ?? name} ${version}`;
}
