"""A question -> what xllamacpp's public parameters must be: llama-server's own start, without memory."""

from __future__ import annotations

import secrets
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from edgekit.bill.types import Load
from edgekit.engines.flags import fields_of
from edgekit.engines.llamacpp.flags import TABLE
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode
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
        "parameters": private_server() | parameters(load, setup) | _run(question),
        "enums": enum_parameters(load, replace(setup, use_mmap=question.really and setup.use_mmap)),
        "pacing": None if question.pacing is None else asdict(question.pacing),
    }


def private_server() -> dict[str, Any]:
    """No one else can use it: one thread on a loopback address, with a key."""
    return {
        "api_keys": [secrets.token_hex(16)],
        "hostnames": ["127.0.0.1"],
        "port": 0,
        "n_threads_http": 1,
        "warmup": False,
    }


def parameters(load: Load, setup: LlamaCppSetup) -> dict[str, Any]:
    """Xllamacpp's public parameters that are not enums, as the table of flags names them."""
    if setup.has_device and setup.servers:
        raise UsageError(
            "xllamacpp is built without RPC: start llama-server with the command that check prints"
        )
    told: dict[str, Any] = {}
    for flag, value, default in fields_of(TABLE, load, setup):
        if flag.parameter is None or flag.parameter.enum or value is None:
            continue
        is_placed = flag.group in {"placement", "devices", "servers"}
        # a switch is always set: another build may have another default
        is_given = isinstance(value, bool) or value != default
        if not is_placed or (setup.has_device and is_given):
            plain = list(value) if isinstance(value, tuple) else value
            told[flag.parameter.name] = not value if flag.parameter.opposite else plain
    told["n_ctx"] = load.context_tokens or 0
    told["n_parallel"] = load.sequences or _AUTO
    told["n_gpu_layers"] = setup.n_gpu_layers if setup.has_device else 0
    if overrides := _overrides(setup):
        told["tensor_buft_overrides"] = ",".join(overrides)
    return told


def _overrides(setup: LlamaCppSetup) -> list[str]:
    """The first that matches decides: what was given comes before the experts."""
    given = [f"{one.pattern}={one.buffer}" for one in setup.overrides]
    if not setup.has_device:
        return given
    if setup.cpu_moe:
        return [*given, _EXPERTS]
    return [*given, *(rf"blk\.{block}{_EXPERTS}" for block in range(setup.n_cpu_moe))]


def _run(question: LoadQuestion) -> dict[str, Any]:
    """Dry: its fit works every buffer out first, before anything else can go wrong."""
    run: dict[str, Any] = {
        "no_alloc": not question.really,
        "fit_params": not question.really,
        "verbosity": _VERBOSE,
    }
    if question.pacing is not None:  # what is kept of prompts would count as the engine's own
        run |= {"cache_ram_mib": 0, "n_ctx_checkpoints": 0}
    return run


def enum_parameters(load: Load, setup: LlamaCppSetup) -> dict[str, tuple[str, str]]:
    """Those that are enums: the enum, and the name of its member."""
    members: dict[str, dict[Any, str]] = {
        "llama_flash_attn_type": {None: "AUTO", True: "ENABLED", False: "DISABLED"},
        "llama_load_mode": {True: "MMAP", False: "NONE"},
    }
    found: dict[str, tuple[str, str]] = {}
    for flag, value, default in fields_of(TABLE, load, setup):
        if flag.parameter is None or not flag.parameter.enum:
            continue
        name, enum, _ = flag.parameter
        if enum in members:
            member = members[enum][value]
        elif value != default:
            member = value.name.upper()
        else:
            continue
        found[name] = (enum, f"{enum.upper()}_{member}")
    return found
