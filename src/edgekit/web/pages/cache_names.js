// Names of cache types, as curves and changes write them <-> the flags that say them to the engine.

import { LLAMACPP_CACHE, MLX_BITS, STREAM_CACHE, VLLM_CACHE } from "./control_rows.js";

const bitsName = (bits) => `${bits} bit`;

/** All that can be drawn, the engine's own first. */
export const OFFERED = {
  "llama.cpp": LLAMACPP_CACHE,
  vllm: VLLM_CACHE,
  mlx: ["16", ...MLX_BITS].map(bitsName),
  stream: STREAM_CACHE,
};

/** "q8_0 + q4_0" -> both flags; vLLM and MLX have one. */
export function cacheFlags(name, engine) {
  if (engine === "vllm") return { kv_cache_dtype: name };
  if (engine === "mlx") return { kv_bits: String(parseInt(name, 10)), quantized_kv_start: "0" };
  const [keys, values] = name.split(" + ");
  return { type_k: keys, type_v: values ?? keys };
}

const PAIR = { type_k: "type_v", type_v: "type_k" };

/** The flag of the other half, where keys and values each have one. */
export const otherHalf = (key) => PAIR[key] ?? null;

/** What a refusal is about where K and V must have one cache type: some models keep one cache for both. */
export const ONE_TYPE = "cache_types";

/** What the settings say, by the name that curves have. */
export function cacheName(settings) {
  if (settings.engine === "vllm") return settings.value("kv_cache_dtype") ?? "auto";
  if (settings.engine === "mlx") return bitsName(settings.value("kv_bits") ?? 16);
  const [keys, values] = ["type_k", "type_v"].map((key) => settings.value(key) ?? "f16");
  return keys === values ? keys : `${keys} + ${values}`;
}
