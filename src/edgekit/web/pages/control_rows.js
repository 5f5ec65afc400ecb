// TABLE of the controls of each engine: one row, one control. Keys and values are those of the flags.

import { COMMON, ENGINE_NAMES, SETTINGS } from "./texts.js";

export const LLAMACPP_CACHE = ["f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "bf16", "f32"];
export const VLLM_CACHE = [
  "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla",
  "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit",
  "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6",
];
export const MLX_BITS = ["8", "6", "5", "4", "3", "2"];
export const STREAM_CACHE = ["f16", "q8_0", "f32"];
const MIXES = ["F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K"];
const MLX_WEIGHTS = ["bf16", "q8", "q6", "q5", "q4", "q3", "q2", "mxfp4"];

/** Values and names; the first leaves the choice to EdgeKit. */
export const ENGINES = [["", COMMON.auto], ...Object.entries(ENGINE_NAMES)];

const menu = (key, values, more = {}) => ({ key, kind: "menu", values, ...more });
const number = (key, more = {}) => ({ key, kind: "number", least: 1, most: 2 ** 31 - 1, ...more });

const CACHE_PAIR = [
  menu("type_k", LLAMACPP_CACHE, { own: "f16" }),
  menu("type_v", LLAMACPP_CACHE, { own: "f16" }),
  { key: "one_cache", kind: "note", need: "oneCache" },
];

/** `fact` names what the engine took, in facts of the estimate; `need` what the model must have. */
export const CONTROLS = {
  "llama.cpp": [
    menu("mix", MIXES, { own: "Q4_K_M", need: "mixable", isWide: true }),
    ...CACHE_PAIR,
    menu("flash_attn", ["on", "off"], { own: "auto", fact: "flash_attn" }),
    { key: "n_gpu_layers", kind: "layers", extra: 1, need: "gpu" },
    { key: "n_cpu_moe", kind: "layers", extra: 0, need: "experts" },
    { key: "cpu_moe", kind: "switch", need: "experts" },
    number("parallel", { fact: "n_seq_max" }),
    number("batch", { fact: "n_batch" }),
    number("ubatch", { fact: "n_ubatch", least: 0 }),
  ],
  vllm: [
    menu("kv_cache_dtype", VLLM_CACHE.slice(1), { own: "auto", isWide: true }),
    menu("tensor_parallel_size", ["1", "2", "4", "8"], { own: "auto", isWide: true }),
    { key: "gpu_memory_utilization", kind: "share", own: 0.92 },
    number("max_num_seqs", { fact: "max_num_seqs" }),
    number("max_num_batched_tokens", { fact: "max_num_batched_tokens" }),
  ],
  mlx: [
    menu("quantize", MLX_WEIGHTS, { own: SETTINGS.defaults.quantize, need: "mixable", isWide: true }),
    menu("kv_bits", MLX_BITS, { own: "16" }),
    menu("kv_group_size", ["32", "64", "128"], { own: "64" }),
    number("quantized_kv_start", { least: 0, own: 5000 }),
    number("prefill_step_size", { fact: "chunk_tokens" }),
    number("max_tokens", { least: 0, fact: "new_tokens" }),
  ],
  stream: [
    menu("type_k", STREAM_CACHE, { own: "f16" }),
    menu("type_v", STREAM_CACHE, { own: "f16" }),
    menu("keep", ["all", "none"], { own: SETTINGS.defaults.keep, isWide: true }),
    { key: "rolling", kind: "switch" },
    number("chunk", { fact: "chunk_tokens" }),
    number("threads", { fact: "threads", most: 1024 }),
  ],
};
