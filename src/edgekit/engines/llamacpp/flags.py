"""llama.cpp's flags: the table of everything that can be set.

Only `TABLE` spells llama.cpp's parameters: to add a flag, add a row and, where memory depends on it, a field
of LlamaCppSetup.
"""

# ruff: noqa: E501 - a table: one row, one or two lines
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit.engines import flags as common
from edgekit.engines.flags import (
    Control,
    Flag,
    Meaning,
    Parameter,
    Whole,
    flag_words,
    names,
    number,
    one_of,
    shares,
    sizes,
    text,
    yes_no,
)
from edgekit.errors import UsageError

if TYPE_CHECKING:
    from enum import Enum
    from types import ModuleType

    from edgekit.bill.types import CacheType
    from edgekit.engines.llamacpp.types import Override

ENOUGH_LAYERS = 99  # commonly used for "all layers"
CACHE_TYPES = ("f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "bf16", "f32")  # arg.cpp
# Commonly published mixes, largest first.
USUAL_MIXES = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K")
DRAFT_MAX = 3  # common.h @ 0c1e570: common_params_speculative_draft.n_max
_CPUS = ("x86", "arm")
MAX_DEVICES = 16  # ggml-cuda.h: GGML_CUDA_MAX_DEVICES
_TRUTHY = {"on": True, "enabled": True, "true": True, "1": True}  # arg.cpp: is_truthy, is_falsey
_FLASH = _TRUTHY | {"off": False, "disabled": False, "false": False, "0": False, "auto": None}


def _types() -> ModuleType:
    """types.py, imported at its first use: --help must be instant."""
    from edgekit.engines.llamacpp import types

    return types


def _flash(text: str) -> str:
    if text.lower() not in _FLASH:
        raise UsageError(f"{text[:40]!r} is not one of on, off, auto")
    return {True: "on", False: "off", None: "auto"}[_FLASH[text.lower()]]


def _layers(text: str) -> str | int:
    if text.lower() in {"all", "auto", "-1", "-2"}:
        return "all"  # auto counts as all: what fits is not known here
    number: int = Whole(most=10**6)(text)
    return number


def _override_field(entries: tuple[str, ...]) -> tuple[Override, ...]:
    if not entries:
        return ()
    from edgekit.engines.llamacpp.overrides import read_overrides

    return read_overrides(",".join(entries))


def _overrides(text: str) -> tuple[str, ...]:
    entries = tuple(text.split(","))
    _override_field(entries)  # raises UsageError for invalid entries
    return entries


def _servers(text: str) -> tuple[str, ...]:
    _types().read_servers(text, MAX_DEVICES)
    return tuple(text.split(","))


def _cpu(text: str) -> str:
    """'x86' or 'arm', also for the name of a processor."""
    if text.lower() in _CPUS:
        return text.lower()
    from edgekit.machine.processors import find_processor

    try:
        return "arm" if find_processor(text).arm else "x86"
    except UsageError as error:
        raise UsageError(f"{text[:40]!r} is not one of {', '.join(_CPUS)}; {error}") from error


def _load_mode(text: str) -> bool:
    mode: str = one_of("none", "mmap", "auto")(text)
    return mode != "none"


# Command-line words that are not just the flag's first name and its value.


def _rpc_words(servers: tuple[str, ...]) -> list[str]:
    """--rpc without memory sizes: llama.cpp queries the servers itself."""
    return ["--rpc", ",".join(server.partition("=")[0] for server in servers)]


def _draft_words(reference: str) -> list[str]:
    from edgekit.engines.llamacpp.model_source import model_draft_words

    return model_draft_words(reference)


def _all_layers(text: str) -> str:
    layers = _layers(text)
    if isinstance(layers, int) and layers < ENOUGH_LAYERS:
        raise UsageError(f"{text[:40]!r}: only all is supported for a draft model")
    return "all"


def _backend(text: str) -> str:
    backend: str = one_of("cpu", "cuda", "hip", "rocm", "metal", "vulkan", "sycl", "none")(text)
    return {"none": "cpu", "rocm": "hip"}.get(backend, backend)


def _llama_version(text: str) -> str:
    _types().read_version(text)
    return text


def _cache_field(name: str) -> CacheType:
    from edgekit.bill.types import cache_type

    return cache_type(name)


def _cache_type(text: str) -> str:
    """Any known cache type: the estimate refuses those that llama.cpp lacks."""
    try:
        return _cache_field(text).name
    except UsageError as error:
        raise UsageError(
            f"unknown cache type {text[:40]!r}; llama.cpp has {', '.join(CACHE_TYPES)}"
        ) from error


# Conversions between a flag's value and its field.


def _enum(name: str) -> Meaning:
    """The text of a member of this enum of types.py <-> the member."""

    def member(value: str) -> Enum:
        item: Enum = getattr(_types(), name)(value)
        return item

    return Meaning(member, lambda member: member.value)


_CACHE = Meaning(_cache_field, lambda kind: kind.name)
_WHEN = Meaning(_FLASH.__getitem__, {True: "on", False: "off", None: "auto"}.__getitem__)
_LAYERS = Meaning(
    lambda layers: _types().ALL_LAYERS if layers == "all" else layers,
    lambda count: "all" if count >= _types().ALL_LAYERS else count,
)
_OVERRIDES = Meaning(_override_field, lambda overrides: tuple(f"{entry.pattern}={entry.buffer}" for entry in overrides))  # fmt: skip


# Values in a row of a batch that are not just a number, a string or a boolean.


def _row_flash(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if not isinstance(value, str) or value not in {"on", "off", "auto"}:
        raise UsageError(f"{name} {value!r} is not on, off or auto")
    return value


def _row_layers(name: str, value: Any) -> str | int:
    count = number(name, value)
    return "all" if count < 0 else count


def _row_entries(name: str, value: Any) -> tuple[str, ...]:
    entries = text(name, value)
    return tuple(entries.split(",")) if entries else ()


def _row_shares(name: str, value: Any) -> tuple[float, ...]:
    split = value or ()
    if not isinstance(split, list | tuple) or len(split) > MAX_DEVICES:
        raise UsageError(f"{name} {split!r:.60} is not a list of up to {MAX_DEVICES} shares")
    for share in split:
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0 <= share <= common.LARGEST:
            raise UsageError(f"{name}: {share!r:.60} is not a share")
    return tuple(float(share) for share in split)


def _row_split_mode(name: str, value: Any) -> str:
    modes = ("none", "layer", "row", "tensor")
    mode = text(name, value) or "layer"
    if mode.lower() not in modes:
        raise UsageError(f"{name} {mode[:40]!r} is not one of {', '.join(modes)}")
    return mode.lower()


CONTEXT = common.CONTEXT._replace(option="n_ctx", parameter=Parameter("n_ctx"), group="context")
FLAGS: tuple[Flag, ...] = (
    Flag(("-b", "--batch-size"), "batch", "logical batch size in tokens (default 2048)", "N", Whole(1), group="batch",
         field="batch_tokens", row=number, option="n_batch", parameter=Parameter("n_batch"), control=Control("Batch size", fact="n_batch", place=7)),
    Flag(("-ub", "--ubatch-size"), "ubatch", "physical batch size: tokens computed at once (default 512)", "N", Whole(), group="batch",
         field="microbatch_tokens", row=number, option="n_ubatch", parameter=Parameter("n_ubatch"), control=Control("Micro-batch size", fact="n_ubatch", place=8)),
    Flag(("-ctk", "--cache-type-k"), "type_k", "KV cache type of the keys: f16 (default), q8_0, q4_0 ...", "TYPE", _cache_type, group="cache",
         field="cache_k", meaning=_CACHE, row=text, parameter=Parameter("cache_type_k", "ggml_type"), control=Control("KV cache (K)", CACHE_TYPES, "f16")),
    Flag(("-ctv", "--cache-type-v"), "type_v", "KV cache type of the values: f16 (default), q8_0, q4_0 ...", "TYPE", _cache_type, group="cache",
         field="cache_v", meaning=_CACHE, row=text, parameter=Parameter("cache_type_v", "ggml_type"), control=Control("KV cache (V)", CACHE_TYPES, "f16")),
    Flag(("-fa", "--flash-attn"), "flash_attn", "flash attention: on, off or auto (default)", "WHEN", _flash, value="on", alone=True, group="context",
         field="flash_attention", meaning=_WHEN, row=_row_flash, parameter=Parameter("flash_attn_type", "llama_flash_attn_type"), control=Control("Flash attention", ("on", "off"), "auto", fact="flash_attn", place=2)),
    Flag(("-np", "--parallel"), "parallel", "parallel sequences (default: 4 that share one KV cache)", "N", Whole(1), group="sequences",
         field="sequences", row=number, option="n_seq_max", parameter=Parameter("n_parallel"), control=Control("Parallel requests", fact="n_seq_max", place=6), not_planned="-np: use --users N, which gives each user a full context"),
    Flag(("-kvu", "--kv-unified"), "unified", "all sequences share one KV cache", group="sequences",
         row=yes_no, option="kv_unified", parameter=Parameter("kv_unified"), not_planned="-kvu: with --users every user gets a full context"),
    Flag(("-no-kvu", "--no-kv-unified"), "unified", "give each sequence its own KV cache", value=False, group="sequences"),
    Flag(("--swa-full",), "swa_full", "keep the whole context in sliding-window layers too", group="context",
         field="full_window", row=yes_no, parameter=Parameter("swa_full")),
    Flag(("--context-shift",), "ctx_shift", "drop the older half of a full context and continue", group="server"),
    Flag(("-ngl", "--n-gpu-layers", "--gpu-layers"), "n_gpu_layers", "layers on the GPU: a number or all (default)", "N", _layers, group="placement",
         meaning=_LAYERS, row=_row_layers, parameter=Parameter("n_gpu_layers"), control=Control("Layers on the GPU", kind="layers", extra=1, need="gpu", place=3)),
    Flag(("-ot", "--override-tensor"), "override_tensor", "put tensors whose names match a pattern into a buffer: exps=CPU (repeatable)", "PATTERN=BUFFER", _overrides, repeats=True, group="placement",
         field="overrides", meaning=_OVERRIDES, row=_row_entries, parameter=Parameter("tensor_buft_overrides")),
    Flag(("-cmoe", "--cpu-moe"), "cpu_moe", "keep the experts of all layers in RAM", group="placement",
         row=yes_no, control=Control("All experts on the CPU", need="experts", place=5), instead_of="n_cpu_moe"),
    Flag(("-ncmoe", "--n-cpu-moe"), "n_cpu_moe", "keep the experts of the first N layers in RAM", "N", Whole(most=10**6), group="placement",
         row=number, control=Control("Layers with experts on the CPU", kind="layers", need="experts", place=4), instead_of="cpu_moe"),
    Flag(("-ts", "--tensor-split"), "tensor_split", "share of the layers for each GPU: 3,1", "N,N", shares, group="placement",
         row=_row_shares, parameter=Parameter("tensor_split")),
    Flag(("-sm", "--split-mode"), "split_mode", "how several GPUs share the model: layer (default), tensor, row (before July 2026) or none", "MODE", one_of("none", "layer", "row", "tensor"), group="devices",
         meaning=_enum("SplitMode"), row=_row_split_mode, parameter=Parameter("split_mode", "llama_split_mode")),
    Flag(("-mg", "--main-gpu"), "main_gpu", "the GPU that -sm none uses (default 0)", "N", Whole(most=15), group="devices",
         row=number, parameter=Parameter("main_gpu")),
    Flag(("--rpc",), "rpc", "RPC servers and their free memory: 192.168.1.5:50052=24G", "HOST:PORT=SIZE", _servers, repeats=True, words=_rpc_words, group="servers",
         row=_row_entries),
    Flag(("-nkvo", "--no-kv-offload"), "offload_kqv", "keep the KV cache in RAM", value=False, group="placement",
         row=yes_no, parameter=Parameter("no_kv_offload", opposite=True)),
    Flag(("--no-mmap",), "mmap", "load the weights into memory instead of mapping the file", value=False,
         field="use_mmap", row=yes_no, option="use_mmap", parameter=Parameter("load_mode", "llama_load_mode")),
    Flag(("-lm", "--load-mode"), "mmap", "same as --no-mmap (newer llama.cpp)", "none", _load_mode, words=lambda mapped: () if mapped else ("-lm", "none")),
    Flag(("--repack",), "repack", "count the repacked copy of the weights that CPU builds keep", group="server",
         parameter=Parameter("no_extra_bufts", opposite=True)),
    Flag(("-nr", "--no-repack"), "repack", "do not repack weights (default)", value=False, group="server"),
    Flag(("--embeddings", "--embedding"), "embeddings", "return embeddings instead of text",
         row=yes_no, parameter=Parameter("embedding")),
    Flag(("-cram", "--cache-ram"), "cache_ram", "size of llama-server's prompt cache in MiB (default 8192)", "MIB", Whole(), group="server",
         field="cache_ram_mib", parameter=Parameter("cache_ram_mib")),
    Flag(("-ctxcp", "--ctx-checkpoints"), "ctx_checkpoints", "context checkpoints that llama-server keeps per slot (default 32)", "N", Whole(), group="server",
         parameter=Parameter("n_ctx_checkpoints")),
    Flag(("-mm", "--mmproj"), "mmproj", "multimodal projector; auto takes the one next to the model", "FILE", words=lambda file: () if file == "auto" else ("-mm", file), group="companion", companion="projector", not_planned="--mmproj: use edgekit check MODEL --mmproj FILE, which counts the projector"),
    Flag(("--no-mmproj",), "no_mmproj", "do not load a projector (default, except that -hf loads the one of a repository)", ours=True),
    Flag(("--lora",), "lora", "LoRA adapters, separated by commas: a.gguf,b.gguf", "FILES", names, group="companion", companion="adapters", not_planned="--lora: use edgekit check, which counts adapters"),
    Flag(("-md", "--model-draft", "--spec-draft-model"), "draft_model", "draft model for speculative decoding: qwen3-0.6b", "MODEL", aliases=("-hfd", "--hf-repo-draft", "--spec-draft-hf"), words=_draft_words, group="companion", companion="drafter", not_planned="-md: it looks for a draft model itself; use edgekit check for one you choose"),
    Flag(("-ctkd", "--cache-type-k-draft"), "draft_type_k", "K-cache type of the draft model", "TYPE", _cache_type, group="drafter"),
    Flag(("-ctvd", "--cache-type-v-draft"), "draft_type_v", "V-cache type of the draft model", "TYPE", _cache_type, group="drafter"),
    Flag(("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"), "draft_gpu_layers", "layers of the draft model on the GPU: only all is supported", "all", _all_layers, group="drafter"),
    Flag(("-devd", "--device-draft"), "draft_device", "device of the draft model: only none (the CPU) is supported", "none", one_of("none"), group="drafter"),
    Flag(("--spec-draft-n-max", "--draft-max"), "draft_max", "tokens that the draft model proposes at a time (default 3)", "N", Whole(most=1024), group="drafter"),
    Flag(("--spec-type",), "spec_type", "draft-simple (default with -md) or draft-mtp (the model's own prediction layers)", "NAME", one_of("none", "draft-simple", "draft-mtp"), group="drafter", not_planned="--spec-type: it looks for a draft model itself (--no-drafter turns that off)"),
    Flag(("--mode",), "mode", "estimate for llama-server (server, default) or llama-cli (library)", "MODE", one_of("server", "library"), ours=True,
         meaning=_enum("LlamaMode")),
    Flag(("--backend",), "backend", "cpu, cuda, hip, metal, vulkan or sycl (default: cuda with a GPU flag, else cpu)", "NAME", _backend, ours=True, group="backend",
         meaning=_enum("Backend")),
    Flag(("-dev",), "backend", "same as --backend cpu: -dev none", "none", _backend, words=lambda backend: ("-dev", "none") if backend == "cpu" else (), group="backend"),
    Flag(("--mix",), "mix", "same as --quant, for llama.cpp: Q4_K_M (default unless the file is a GGUF), Q8_0 ...", "NAME", ours=True, group="weights",
         row=text, control=Control("Quantization", USUAL_MIXES, "Q4_K_M", need="mixable", is_wide=True, place=0)),
    Flag(("--llama-version",), "llama_version", "llama.cpp release to model: b9294, 0.6, 2026.9 (default: the one installed, else the newest known)", "VERSION", _llama_version, ours=True,
         row=text),
    Flag(("--cpu",), "cpu", "CPU that --repack is for: x86, arm or a processor's name (default: this machine's)", "NAME", _cpu, ours=True,
         meaning=_enum("Cpu"), of_machine=True),
    Flag(("--device-memory",), "device_memory", "free memory of each GPU, which decides the split: 24G,24G", "SIZES", sizes, ours=True, group="placement", of_machine=True),
)  # fmt: skip
# Options of batch rows only: they have no flag.
ROW_ONLY = (
    Flag((), "output_rows", "", "N", row=number, option="n_outputs_max"),
    Flag((), "load_mtp", "", row=yes_no, parameter=Parameter("load_mtp")),
)
TABLE = (CONTEXT, *FLAGS, *ROW_ONLY)
ON_GPU = {"backend": "cuda"}
ONE_SEQUENCE = {"parallel": "1"}


def keys_of(*groups: str) -> frozenset[str]:
    """The keys of all flags in these groups."""
    return frozenset(flag.key for flag in FLAGS if flag.group in groups)


ON_A_GPU = keys_of("placement", "devices", "servers")
# Options of a row that request a GPU. The other two matter only if there is one.
GPU_OPTIONS = tuple(
    flag.option or flag.key
    for flag in FLAGS
    if flag.key in ON_A_GPU - {"main_gpu", "offload_kqv"} and flag.row is not None
)
ROUGH_PLACEMENT = ("n_gpu_layers", "cpu_moe", "n_cpu_moe")  # printed before the finer flags
COMPANIONS = keys_of("companion", "weights")  # loaded with the model, or instead of it
# Flags that `verify` takes. The rest concern memory outside the engine's buffers, or are not part of a dry run.
# cpu and llama_version are fixed by the installed engine; neither verify method supports rpc.
_UNVERIFIED = {"cache_ram", "cpu", "ctx_checkpoints", "device_memory", "rpc", "llama_version"}
VERIFIED = tuple(flag for flag in FLAGS if flag.key not in COMPANIONS | _UNVERIFIED)
# Flags that printed commands repeat as given: load and setup do not hold them completely.
REPEATED = keys_of("companion", "drafter", "server")
# Flags that Ollama has too, as a variable of its server or as a parameter of a model: commands.ollama_settings
_OF_OLLAMA = frozenset(
    {
        "parallel", "type_k", "type_v", "flash_attn", "backend", "n_gpu_layers", "ubatch", "mmap", "cache_ram",
        "ctx_checkpoints",
    }
)  # fmt: skip
# The order of groups on a command line: --rpc comes before -ot, which may name its devices. Within a group, table order
# applies: -ot precedes -ncmoe because the first match wins.
_PRINTED = (
    "sequences", "backend", "servers", "placement", "devices", "cache", "context", "batch", "",
    "server", "companion", "drafter", "weights",
)  # fmt: skip
_LOAD_MODE_BUILD = 10809  # arg.cpp: it has --no-mmap as well, which later builds lack


def command_words(values: Mapping[str, Any], build: int) -> list[str]:
    """The command-line words for a build of llama.cpp."""
    missing = "--no-mmap" if build >= _LOAD_MODE_BUILD else "-lm"
    flags = (flag for flag in FLAGS if flag.names[0] != missing)
    return flag_words(
        (CONTEXT, *sorted(flags, key=lambda flag: _PRINTED.index(flag.group))), values
    )


def words_ollama_lacks(given: Mapping[str, Any]) -> list[str]:
    """The command-line words of the given flags that Ollama has no equivalent of. Companions are left out."""
    # It has one size for both batches, gives each request a cache of its own, and splits layers.
    only = {"batch": given.get("ubatch"), "unified": False, "split_mode": "layer"}
    lacking = {
        key: value
        for key, value in given.items()
        if key not in _OF_OLLAMA and (key not in only or value != only[key])
    }
    flags = (flag for flag in FLAGS if not (flag.ours or flag.companion))
    return flag_words(flags, lacking, ours=True)
