"""A question -> what xllamacpp's public parameters must be: llama-server's own start, without memory."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode, SplitMode
from edgekit.engines.llamacpp.verify.types import STOP, LoadQuestion
from edgekit.errors import UsageError

NAME = "xllamacpp"
MODE = LlamaMode.SERVER  # it starts a server: one row of logits for each sequence
INSTALL = "pip install 'edgekit-models[llama]'"

_AUTO = -1  # n_parallel: what llama-server does when it is not told
_VERBOSE = 5  # the dry run of its own fit tells its buffers from here on
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"  # arg.cpp: --cpu-moe


def is_here() -> bool:
    return find_spec(NAME) is not None


def told_version() -> str:
    try:
        return version(NAME)
    except PackageNotFoundError:
        return "of unknown version"


def request(question: LoadQuestion) -> dict[str, Any]:
    """What the child process is told: plain parameters, and enums by their names."""
    load, setup = question.load, question.setup
    if load.output_rows is not None:
        raise UsageError("llama-server chooses the number of output rows itself")
    return {
        "way": NAME,
        "model": str(question.path),
        "stop_at": None if question.really else str(question.path.with_name(STOP)),
        "embeddings": setup.embeddings,
        "parameters": _server()
        | context_parameters(load, setup)
        | placement_parameters(setup)
        | _run(question),
        "enums": enum_parameters(
            load, mapped=question.really and setup.use_mmap, split_mode=setup.split_mode
        ),
        "pacing": None if question.pacing is None else asdict(question.pacing),
    }


def _server() -> dict[str, Any]:
    """Nobody else may talk to it while it is up; a few threads are enough."""
    return {
        "api_keys": [secrets.token_hex(16)],
        "hostnames": ["127.0.0.1"],
        "port": 0,
        "n_threads_http": 1,
        "verbosity": _VERBOSE,
        "warmup": False,
    }


def context_parameters(load: Load, setup: LlamaCppSetup) -> dict[str, Any]:
    asked = {
        "n_ctx": load.context_tokens or 0,
        "n_batch": load.batch_tokens,
        "n_ubatch": load.microbatch_tokens,
        "n_parallel": load.sequences or _AUTO,
        "kv_unified": load.unified,
        "swa_full": load.full_window,
        "embedding": setup.embeddings,
    }
    return {name: value for name, value in asked.items() if value is not None}


def placement_parameters(setup: LlamaCppSetup) -> dict[str, Any]:
    moved = [f"{one.pattern}={one.buffer}" for one in setup.overrides]
    if not setup.has_device:
        given = {"tensor_buft_overrides": ",".join(moved)} if moved else {}
        return {"n_gpu_layers": 0, "no_extra_bufts": not setup.repack, **given}
    blocks = range(setup.n_cpu_moe)
    if setup.servers:
        raise UsageError(
            "xllamacpp is built without RPC: start llama-server with the command that check prints"
        )
    experts = [_EXPERTS] if setup.cpu_moe else [rf"blk\.{block}{_EXPERTS}" for block in blocks]
    overrides = [*moved, *experts]  # the first that matches decides
    placed: dict[str, Any] = {
        "n_gpu_layers": setup.n_gpu_layers,
        "no_kv_offload": not setup.offload_kqv,
        "no_extra_bufts": not setup.repack,
    }
    if overrides:
        placed["tensor_buft_overrides"] = ",".join(overrides)
    if setup.main_gpu:
        placed["main_gpu"] = setup.main_gpu
    if setup.tensor_split:
        placed["tensor_split"] = list(setup.tensor_split)
    return placed


def _run(question: LoadQuestion) -> dict[str, Any]:
    """Dry: its fit works every buffer out first, before anything else can go wrong."""
    run: dict[str, Any] = {
        "no_alloc": not question.really,
        "fit_params": not question.really,
        "load_mtp": question.setup.load_mtp,
    }
    if question.pacing is not None:  # what is kept of prompts would count as the engine's own
        run |= {"cache_ram_mib": 0, "n_ctx_checkpoints": 0}
    return run


def enum_parameters(
    load: Load, *, mapped: bool, split_mode: SplitMode = SplitMode.LAYER
) -> dict[str, tuple[str, str]]:
    flash = {None: "AUTO", True: "ENABLED", False: "DISABLED"}
    enums = {
        "load_mode": ("llama_load_mode", f"LLAMA_LOAD_MODE_{'MMAP' if mapped else 'NONE'}"),
        "flash_attn_type": (
            "llama_flash_attn_type",
            f"LLAMA_FLASH_ATTN_TYPE_{flash[load.flash_attention]}",
        ),
    }
    if split_mode is not SplitMode.LAYER:
        enums["split_mode"] = ("llama_split_mode", f"LLAMA_SPLIT_MODE_{split_mode.name}")
    for name, kind in (("cache_type_k", load.cache_k), ("cache_type_v", load.cache_v)):
        if kind is not None:
            enums[name] = ("ggml_type", f"GGML_TYPE_{kind.name.upper()}")
    return enums
