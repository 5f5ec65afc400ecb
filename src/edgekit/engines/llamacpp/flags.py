"""llama.cpp's flags -> a load and a setup, and the command that starts it so."""

# ruff: noqa: E501 - a table: one row, one line
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit.engines.flags import Flag, flag_words, names, one_of, shares, sizes, whole
from edgekit.errors import UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.engines.llamacpp.types import Cpu, DeviceSlot, LlamaCppSetup
    from edgekit.engines.model_words import GgufSource
    from edgekit.model.open import Opened

TITLE = "llama.cpp"
_ON_A_GPU = (
    "n_gpu_layers", "cpu_moe", "n_cpu_moe", "tensor_split", "offload_kqv", "device_memory",
    "split_mode", "main_gpu", "override_tensor", "rpc",
)  # fmt: skip
ENOUGH_LAYERS = 99  # what people write for all
DRAFT_MAX = 3  # common.h @ 0c1e570: common_params_speculative_draft.n_max
COMPANIONS = frozenset(
    {"mmproj", "lora", "draft_model", "mix"}
)  # loaded beside the model, or in its stead
# Flags that the command of an answer repeats as they were typed: load and setup do not say them, or not all of it.
BESIDE_THE_SETUP = frozenset({
    "mmproj", "lora", "draft_model", "draft_type_k", "draft_type_v", "draft_gpu_layers",
    "draft_device", "draft_max", "spec_type", "ctx_shift", "repack", "cache_ram", "ctx_checkpoints",
})  # fmt: skip
_TRUTHY = {"on": True, "enabled": True, "true": True, "1": True}  # arg.cpp: is_truthy, is_falsey
_FLASH = _TRUTHY | {"off": False, "disabled": False, "false": False, "0": False, "auto": None}


def _flash(text: str) -> str:
    if text.lower() not in _FLASH:
        raise UsageError(f"{text[:40]!r} is not one of on, off, auto")
    return {True: "on", False: "off", None: "auto"}[_FLASH[text.lower()]]


def _layers(text: str) -> str | int:
    if text.lower() in {"all", "auto", "-1", "-2"}:
        return "all"  # what fits is not known here: auto is told as if all did
    number: int = whole(most=10**6)(text)
    return number


def _overrides(text: str) -> tuple[str, ...]:
    from edgekit.engines.llamacpp.devices import read_overrides

    read_overrides(text)
    return tuple(text.split(","))


def _servers(text: str) -> tuple[str, ...]:
    from edgekit.engines.llamacpp.devices import read_servers

    read_servers(text)
    return tuple(text.split(","))


def _endpoints(servers: tuple[str, ...]) -> tuple[str, ...]:
    """As llama.cpp has them, which asks the servers for their memory itself."""
    return tuple(server.partition("=")[0] for server in servers)


def _all_layers(text: str) -> str:
    layers = _layers(text)
    if isinstance(layers, int) and layers < ENOUGH_LAYERS:
        raise UsageError(f"{text[:40]!r}: only all is supported for a draft model")
    return "all"


def _backend(text: str) -> str:
    found: str = one_of("cpu", "cuda", "metal", "vulkan", "none")(text)
    return "cpu" if found == "none" else found


def _llama_version(text: str) -> str:
    from edgekit.engines.llamacpp.versions import read_version

    read_version(text)
    return text


def _cache_type(text: str) -> str:
    """A name of the table; what llama.cpp has not it refuses itself."""
    from edgekit.bill.cache_types import cache_type
    from edgekit.engines.llamacpp.context import CACHE_TYPES

    try:
        return cache_type(text).name
    except UsageError as error:
        raise UsageError(
            f"unknown cache type {text[:40]!r}; llama.cpp has {', '.join(CACHE_TYPES)}"
        ) from error


FLAGS: tuple[Flag, ...] = (
    Flag(("-b", "--batch-size"), "batch", "logical batch size in tokens (default 2048)", "N", whole(1)),
    Flag(("-ub", "--ubatch-size"), "ubatch", "physical batch size: tokens computed at once (default 512)", "N", whole()),
    Flag(("-ctk", "--cache-type-k"), "type_k", "KV cache type of the keys: f16 (default), q8_0, q4_0 ...", "TYPE", _cache_type),
    Flag(("-ctv", "--cache-type-v"), "type_v", "KV cache type of the values: f16 (default), q8_0, q4_0 ...", "TYPE", _cache_type),
    Flag(("-fa", "--flash-attn"), "flash_attn", "flash attention: on, off or auto (default)", "WHEN", _flash, value="on", alone=True),
    Flag(("-np", "--parallel"), "parallel", "parallel sequences (default: 4 that share one KV cache)", "N", whole(1)),
    Flag(("-kvu", "--kv-unified"), "unified", "all sequences share one KV cache"),
    Flag(("-no-kvu", "--no-kv-unified"), "unified", "give each sequence its own KV cache", value=False),
    Flag(("--swa-full",), "swa_full", "keep the whole context in sliding-window layers too"),
    Flag(("--context-shift",), "ctx_shift", "drop the older half of a full context and continue"),
    Flag(("-ngl", "--n-gpu-layers", "--gpu-layers"), "n_gpu_layers", "layers on the GPU: a number or all (default)", "N", _layers),
    Flag(("-ot", "--override-tensor"), "override_tensor", "put tensors whose names match a pattern into a buffer: exps=CPU (repeatable)", "PATTERN=BUFFER", _overrides, repeats=True),
    Flag(("-cmoe", "--cpu-moe"), "cpu_moe", "keep the experts of all layers in RAM"),
    Flag(("-ncmoe", "--n-cpu-moe"), "n_cpu_moe", "keep the experts of the first N layers in RAM", "N", whole(most=10**6)),
    Flag(("-ts", "--tensor-split"), "tensor_split", "share of the layers for each GPU: 3,1", "N,N", shares),
    Flag(("-sm", "--split-mode"), "split_mode", "how several GPUs share the model: layer (default), tensor, row (before July 2026) or none", "MODE", one_of("none", "layer", "row", "tensor")),
    Flag(("-mg", "--main-gpu"), "main_gpu", "the GPU that -sm none uses (default 0)", "N", whole(most=15)),
    Flag(("--rpc",), "rpc", "RPC servers and their free memory: 192.168.1.5:50052=24G", "HOST:PORT=SIZE", _servers, repeats=True, engines=_endpoints),
    Flag(("-nkvo", "--no-kv-offload"), "offload_kqv", "keep the KV cache in RAM", value=False),
    Flag(("--no-mmap",), "mmap", "load the weights into memory instead of mapping the file", value=False),
    Flag(("--repack",), "repack", "count the repacked copy of the weights that CPU builds keep"),
    Flag(("-nr", "--no-repack"), "repack", "do not repack weights (default)", value=False),
    Flag(("--embeddings", "--embedding"), "embeddings", "return embeddings instead of text"),
    Flag(("-cram", "--cache-ram"), "cache_ram", "size of llama-server's prompt cache in MiB (default 8192)", "MIB", whole()),
    Flag(("-ctxcp", "--ctx-checkpoints"), "ctx_checkpoints", "context checkpoints that llama-server keeps per slot (default 32)", "N", whole()),
    Flag(("-mm", "--mmproj"), "mmproj", "multimodal projector; auto takes the one next to the model", "FILE"),
    Flag(("--no-mmproj",), "no_mmproj", "do not load a projector (default unless --mmproj is given)", ours=True),
    Flag(("--lora",), "lora", "LoRA adapters, separated by commas: a.gguf,b.gguf", "FILES", names),
    Flag(("-md", "--model-draft", "--spec-draft-model"), "draft_model", "draft model for speculative decoding: qwen3-0.6b", "MODEL", aliases=("-hfd", "--hf-repo-draft", "--spec-draft-hf")),
    Flag(("-ctkd", "--cache-type-k-draft"), "draft_type_k", "K-cache type of the draft model", "TYPE", _cache_type),
    Flag(("-ctvd", "--cache-type-v-draft"), "draft_type_v", "V-cache type of the draft model", "TYPE", _cache_type),
    Flag(("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"), "draft_gpu_layers", "layers of the draft model on the GPU: only all is supported", "all", _all_layers),
    Flag(("-devd", "--device-draft"), "draft_device", "device of the draft model: only none (the CPU) is supported", "none", one_of("none")),
    Flag(("--spec-draft-n-max", "--draft-max"), "draft_max", "tokens that the draft model proposes at a time (default 3)", "N", whole(most=1024)),
    Flag(("--spec-type",), "spec_type", "draft-simple (default with -md) or draft-mtp (the model's own prediction layers)", "NAME", one_of("none", "draft-simple", "draft-mtp")),
    Flag(("--mode",), "mode", "estimate for llama-server (server, default) or llama-cli (library)", "MODE", one_of("server", "library"), ours=True),
    Flag(("--backend",), "backend", "cpu, cuda, metal or vulkan (default: cuda with a GPU flag, else cpu)", "NAME", _backend, ours=True),
    Flag(("-dev",), "backend", "same as --backend cpu: -dev none", "none", _backend, ours=True),
    Flag(("--mix",), "mix", "same as --quant, for llama.cpp: Q4_K_M (default unless the file is a GGUF), Q8_0 ...", "NAME", ours=True),
    Flag(("--llama-version",), "llama_version", "llama.cpp release to model: b9294, 0.6, 2026.9 (default: the one installed, else the newest known)", "VERSION", _llama_version, ours=True),
    Flag(("--cpu",), "cpu", "CPU that --repack is for: x86 or arm (default: this machine's)", "NAME", one_of("x86", "arm"), ours=True),
    Flag(("--device-memory",), "device_memory", "free memory of each GPU, which decides the split: 24G,24G", "SIZES", sizes, ours=True),
)  # fmt: skip


def ask(values: Mapping[str, Any]) -> tuple[Load, LlamaCppSetup]:
    """What is asked of llama.cpp."""
    return _load(values), _setup(values)


def _load(values: Mapping[str, Any]) -> Load:
    from edgekit.bill.cache_types import cache_type
    from edgekit.bill.types import Load

    key, value = values.get("type_k"), values.get("type_v")
    return Load(
        context_tokens=values.get("context"),
        sequences=values.get("parallel"),
        batch_tokens=values.get("batch"),
        microbatch_tokens=values.get("ubatch"),
        cache_k=None if key is None else cache_type(key),
        cache_v=None if value is None else cache_type(value),
        flash_attention=_FLASH[values.get("flash_attn", "auto")],
        unified=values.get("unified"),
        full_window=values.get("swa_full", False),
    )


def this_cpu() -> Cpu:
    """That of the machine at hand; a machine that is judged has its own."""
    from edgekit.engines.llamacpp.types import Cpu
    from edgekit.machine.system import is_arm

    return Cpu.ARM if is_arm() else Cpu.X86


def _setup(values: Mapping[str, Any]) -> LlamaCppSetup:
    from edgekit.engines.llamacpp.devices import read_overrides
    from edgekit.engines.llamacpp.types import (
        ALL_LAYERS,
        Backend,
        Cpu,
        LlamaCppSetup,
        LlamaMode,
        SplitMode,
    )
    from edgekit.engines.llamacpp.versions import default_version, read_version

    wanted = values.get("backend") or ("cuda" if any(k in values for k in _ON_A_GPU) else "cpu")
    layers = values.get("n_gpu_layers", "all")
    asked = values.get("llama_version")
    version = default_version() if asked is None else read_version(asked)
    plain = {
        name: values[key]
        for key, name in (("cache_ram", "cache_ram_mib"), ("ctx_checkpoints", "ctx_checkpoints"))
        if key in values
    }
    return LlamaCppSetup(
        mode=LlamaMode(values.get("mode", "server")),
        backend=Backend(wanted),
        n_gpu_layers=ALL_LAYERS if layers == "all" else layers,
        n_cpu_moe=values.get("n_cpu_moe", 0),
        cpu_moe=values.get("cpu_moe", False),
        devices=_devices(values),
        tensor_split=values.get("tensor_split", ()),
        split_mode=SplitMode(values.get("split_mode", "layer")),
        main_gpu=values.get("main_gpu", 0),
        servers=_given_servers(values),
        overrides=read_overrides(",".join(values["override_tensor"]))
        if "override_tensor" in values
        else (),
        offload_kqv=values.get("offload_kqv", True),
        use_mmap=values.get("mmap", True),
        repack=values.get("repack", False),
        cpu=Cpu(values["cpu"]) if "cpu" in values else this_cpu(),
        embeddings=values.get("embeddings", False),
        load_mtp=values.get("spec_type") == "draft-mtp",
        ctx_shift=values.get("ctx_shift", False),
        draft_max=_draft_max(values),
        mix=values.get("mix"),
        **plain,
        **version._asdict(),
    )


def _draft_max(values: Mapping[str, Any]) -> int:
    drafts = "draft_model" in values or values.get("spec_type") == "draft-mtp"
    number: int = values.get("draft_max", DRAFT_MAX) if drafts else 0
    return number


def _given_servers(values: Mapping[str, Any]) -> tuple[DeviceSlot, ...]:
    from edgekit.engines.llamacpp.devices import read_servers

    return read_servers(",".join(values["rpc"])) if "rpc" in values else ()


def _devices(values: Mapping[str, Any]) -> tuple[DeviceSlot, ...]:
    from edgekit.engines.llamacpp.types import DeviceSlot, SplitMode, used_devices

    memory, split = values.get("device_memory", ()), values.get("tensor_split", ())
    servers = _given_servers(values)
    if memory and split and len(memory) + len(servers) != len(split):
        raise UsageError(
            f"--device-memory has {len(memory)} GPUs and --rpc {len(servers)} devices, "
            f"but --tensor-split has {len(split)} shares"
        )
    own = tuple(DeviceSlot(free_bytes=free) for free in memory)
    if not own:
        least = 0 if servers and values.get("backend", "cpu") == "cpu" else 1
        own = (DeviceSlot(),) * max(least, len(split) - len(servers))
    mode, main = SplitMode(values.get("split_mode", "layer")), values.get("main_gpu", 0)
    if mode is SplitMode.NONE and main >= len(servers) and not (memory or split):
        return (
            DeviceSlot(number=main - len(servers)),
        )  # how many GPUs there are is not known here
    return used_devices((*servers, *own), mode, main)


def settled(setup: LlamaCppSetup) -> dict[str, Any]:
    """What a plan has chosen, as values of flags."""
    from edgekit.engines.llamacpp.types import ALL_LAYERS

    if not setup.has_device:
        return {}
    found: dict[str, Any] = {
        "n_gpu_layers": "all" if setup.n_gpu_layers == ALL_LAYERS else setup.n_gpu_layers
    }
    if setup.cpu_moe:
        found["cpu_moe"] = True
    elif setup.n_cpu_moe:
        found["n_cpu_moe"] = setup.n_cpu_moe
    if setup.overrides:
        found["override_tensor"] = tuple(f"{one.pattern}={one.buffer}" for one in setup.overrides)
    if setup.tensor_split:
        found["tensor_split"] = setup.tensor_split
    if not setup.offload_kqv:
        found["offload_kqv"] = False
    return found


def told(load: Load, estimate: MemoryEstimate) -> str:
    """What was asked for, as llama.cpp resolved it."""
    facts = dict(estimate.facts)
    count, shared = facts["n_seq_max"], facts["kv_streams"] == 1
    who = "shared by" if shared and count != 1 else "for"
    kept = dict.fromkeys(kind.name if kind else "f16" for kind in (load.cache_k, load.cache_v))
    return (
        f"{facts['n_ctx']:,} tokens of context {who} {count} sequence{'s' * (count != 1)}, "
        f"cache {' and '.join(kept)}, flash attention {'on' if facts['flash_attn'] else 'off'}"
    )


def command(values: Mapping[str, Any], estimate: MemoryEstimate, opened: Opened) -> list[str]:
    """Context and layers are always said: llama.cpp would fit what is not to the memory it finds."""
    from edgekit.engines.model_words import draft_words

    program = "llama-server" if values.get("mode", "server") == "server" else "llama-cli"
    context = values.get("context") or dict(estimate.facts)["n_ctx"]
    words = [
        program,
        *model_source(values, opened).words,
        "-c",
        str(context),
        *flag_words(
            FLAGS, {key: values[key] for key in values if key not in {"draft_model", "mmap"}}
        ),
        *_setup(values).load_words,
        *(draft_words(values["draft_model"]) if "draft_model" in values else ()),
    ]
    if estimate.backend == "cpu":
        return [*words, "-dev", "none"]
    return words if "n_gpu_layers" in values else [*words, "-ngl", "all"]


def model_source(values: Mapping[str, Any], opened: Opened) -> GgufSource:
    """What llama.cpp calls the model at the quantisation it is billed at."""
    from edgekit.engines.llamacpp.as_gguf import default_mix
    from edgekit.engines.model_words import gguf_source
    from edgekit.sources.types import Container

    files = opened.files
    is_stored = files is not None and files.container is Container.GGUF
    mix = values.get("mix") or opened.mix or (None if is_stored else default_mix(opened.model))
    return gguf_source(files, mix, opened.label, projector="mmproj" in values)
