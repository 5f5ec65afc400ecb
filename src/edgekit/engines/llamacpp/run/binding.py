"""How EdgeKit calls a local llama.cpp: in a child process, through xllamacpp or llama-fit-params.

To add another method, add its functions and a row in `METHODS`.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgekit.bill.types import Component, Load
from edgekit.engines.discovery import FoundProgram, ask_program, find_programs, is_program
from edgekit.engines.flags import fields_of, flag_words, given_values
from edgekit.engines.llamacpp.flags import TABLE
from edgekit.engines.llamacpp.types import SERVER, WHEEL, Backend, LlamaCppSetup, LlamaMode
from edgekit.engines.process import ChildProcess, Message
from edgekit.engines.program import Installation
from edgekit.errors import EngineError, UsageError
from edgekit.machine.surroundings import Surroundings

SCRIPT = Path(__file__).parents[1] / "child.py"
PASSIVE = {"OMP_WAIT_POLICY": "passive"}  # waiting threads do not spin
# Variables with the numbers of the GPUs that a backend may use; empty: none.
VISIBLE = {
    Backend.CUDA: "CUDA_VISIBLE_DEVICES",
    Backend.HIP: "HIP_VISIBLE_DEVICES",
    Backend.VULKAN: "GGML_VK_VISIBLE_DEVICES",
}
# llama.cpp uses a GPU even if no layer is offloaded: hide it for CPU-only runs.
NO_DEVICES = dict.fromkeys(VISIBLE.values(), "")
_ENVIRONMENT = {
    "GGML_NO_BACKTRACE": "1",  # otherwise an abort starts a debugger on itself
    "MALLOC_ARENA_MAX": "2",  # each arena reserves 64 MiB of the address space
}
# Settings that the plan does not know: flags as variables, where Google's platform expects llama.cpp to listen, and the
# user's key, which the llama-server inside Ollama would demand of Ollama.
_NOT_INHERITED = ("LLAMA_ARG_", "LLAMA_API_KEY", "AIP_MODE")
# Components that the engine reports too. It does not report prompt caches and the driver's context.
COMPARED = (
    Component.WEIGHTS,
    Component.KV_CACHE,
    Component.SLIDING_KV_CACHE,
    Component.STATE,
    Component.OUTPUT,
    Component.COMPUTE,
)
# An adapter that does not exist. Failing to open it stops a server after its dry run. Otherwise the server would load
# the model without having allocated memory for it, and crash before its log is written.
STOP = "no-adapter.gguf"
XLLAMACPP_NAME, SERVER_NAME = WHEEL, SERVER
INSTALL_XLLAMACPP = "pip install 'edgekit-models[llama]'"
_AUTO = -1  # n_parallel: llama-server's default
_VERBOSE = 5  # from this verbosity on, its dry run logs buffers
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"  # arg.cpp: --cpu-moe
FIT_TOOL_NAME = "llama-fit-params"
_NOT_OF_FIT_TOOL = frozenset({"rpc", "device_memory", "unified"})
_VERSION_TIMEOUT_S = 20.0


def child_environment(added: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that runs llama.cpp."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)
    }
    return {**inherited, **_ENVIRONMENT, **added}


def start_child(
    job: str,
    request: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
    on_message: Callable[[Message], None] | None = None,
    title: str = "",
) -> ChildProcess:
    """Starts the child. `job`: one of child.py's; `title`: shown in process lists, by default the model's file name.
    EngineError if it cannot be started.
    """
    child = ChildProcess(
        [sys.executable, "-P", str(SCRIPT), title or Path(request.get("model", job)).name],
        environment=child_environment(environment),
        on_line=on_line,
        on_message=on_message,
    )
    child.send({**request, "job": job})
    return child


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadQuestion:
    """A question to the engine: the memory of this file with this load and setup."""

    path: Path
    load: Load
    setup: LlamaCppSetup
    really: bool = False  # load the weights and decode a few tokens
    pacing: Pacing | None = None  # then process more tokens to measure speed
    timeout_s: float
    # Limit on the address space. None with a GPU, whose driver reserves any amount.
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How to measure a loaded model's speed: the best of several identical runs counts."""

    vocabulary: int  # token ids are below this
    prompt_tokens: int = 512  # at most; fewer if that would take too long
    new_tokens: int = 32
    times: int = 5
    seconds: float  # for all runs; at least one is done


def has_xllamacpp() -> bool:
    return find_spec(XLLAMACPP_NAME) is not None


def xllamacpp_version() -> str:
    try:
        return version_of(XLLAMACPP_NAME)
    except PackageNotFoundError:
        return "of unknown version"


def xllamacpp_request(question: LoadQuestion) -> dict[str, Any]:
    """The request to the child process: plain parameters, and enums by name."""
    load, setup = question.load, question.setup
    if load.output_rows is not None:
        raise UsageError("llama-server chooses the number of output rows itself")
    # A dry run computes all buffers before anything can fail.
    run: dict[str, Any] = {
        "no_alloc": not question.really,
        "fit_params": not question.really,
        "verbosity": _VERBOSE,
    }
    if question.pacing is not None:  # cached prompts would count as the engine's memory
        run |= {"cache_ram_mib": 0, "n_ctx_checkpoints": 0}
    return {
        "model": str(question.path),
        "stop_at": None if question.really else str(question.path.with_name(STOP)),
        "embeddings": setup.embeddings,
        "parameters": private_server() | parameters(load, setup) | run,
        "enums": enum_parameters(load, replace(setup, use_mmap=question.really and setup.use_mmap)),
        "pacing": None if question.pacing is None else asdict(question.pacing),
    }


def private_server() -> dict[str, Any]:
    """Parameters of a private server: one thread on a loopback address, with a key."""
    return {
        "api_keys": [secrets.token_hex(16)],
        "hostnames": ["127.0.0.1"],
        "port": 0,
        "n_threads_http": 1,
        "warmup": False,
    }


def parameters(load: Load, setup: LlamaCppSetup) -> dict[str, Any]:
    """The parameters of xllamacpp that are not enums, from the table of flags."""
    if setup.has_device and setup.servers:
        raise UsageError(
            "xllamacpp is built without RPC: start llama-server with the command that check prints"
        )
    values_by_name: dict[str, Any] = {}
    for flag, value, default in fields_of(TABLE, load, setup):
        if flag.parameter is None or flag.parameter.enum or value is None:
            continue
        is_placed = flag.group in {"placement", "devices", "servers"}
        # a switch is always set: its default differs between builds
        is_given = isinstance(value, bool) or value != default
        if not is_placed or (setup.has_device and is_given):
            plain = list(value) if isinstance(value, tuple) else value
            values_by_name[flag.parameter.name] = not value if flag.parameter.opposite else plain
    always: dict[str, Any] = {
        "context": load.context_tokens or 0,
        "parallel": load.sequences or _AUTO,
        "n_gpu_layers": setup.n_gpu_layers if setup.has_device else 0,
    }
    # The first match applies, so the overrides of the user precede those for experts.
    overrides = [f"{override.pattern}={override.buffer}" for override in setup.overrides]
    if setup.has_device and setup.cpu_moe:
        overrides.append(_EXPERTS)
    elif setup.has_device:
        overrides += (rf"blk\.{block}{_EXPERTS}" for block in range(setup.n_cpu_moe))
    if overrides:
        always["override_tensor"] = ",".join(overrides)
    names = {flag.key: flag.parameter.name for flag in TABLE if flag.parameter is not None}
    values_by_name |= {names[key]: value for key, value in always.items()}
    return values_by_name


def enum_parameters(load: Load, setup: LlamaCppSetup) -> dict[str, tuple[str, str]]:
    """Enum parameters: the enum and the name of its member."""
    special_members: dict[str, dict[Any, str]] = {
        "llama_flash_attn_type": {None: "AUTO", True: "ENABLED", False: "DISABLED"},
        "llama_load_mode": {True: "MMAP", False: "NONE"},
    }
    members_by_parameter: dict[str, tuple[str, str]] = {}
    for flag, value, default in fields_of(TABLE, load, setup):
        if flag.parameter is None or not flag.parameter.enum:
            continue
        name, enum, _ = flag.parameter
        if enum in special_members:
            member = special_members[enum][value]
        elif value != default:
            member = value.name.upper()
        else:
            continue
        members_by_parameter[name] = (enum, f"{enum.upper()}_{member}")
    return members_by_parameter


def find_fit_tools(here: Surroundings, servers: Iterable[FoundProgram]) -> tuple[FoundProgram, ...]:
    """llama-fit-params on the PATH, or next to one of these llama-servers."""
    folders = [
        (server.origin, folder)
        for server in servers
        for folder in dict.fromkeys((server.path.parent, server.path.resolve().parent))
    ]
    return find_programs(FIT_TOOL_NAME, here, folders)


def find_fit_tool() -> str | None:
    """The path of the first one; None if there is none."""
    here = Surroundings()
    found = find_fit_tools(here, find_programs(SERVER_NAME, here))
    return str(found[0].path) if found else None


def has_fit_tool() -> bool:
    return find_fit_tool() is not None


def fit_tool_version(program: str | None = None) -> str:
    """The tool's version from its --version: 'version: 0.5.0-dev (build 1, commit 0c1e570)'."""
    program = program or find_fit_tool()
    if program is None:
        return "of unknown version"
    output = ask_program([program, "--version"], timeout_s=_VERSION_TIMEOUT_S)
    match = re.search(r"version: ([^\n]{1,80})", output.text)
    return match[1].strip() if match else "of unknown version"


def fit_tool_request(question: LoadQuestion, program: str | None = None) -> dict[str, Any]:
    """The tool's command. UsageError for flags of llama-server: it only has those that all llama.cpp tools share."""
    load, setup = question.load, question.setup
    refused = {
        "load a model for real": question.really,
        "report on embeddings": setup.embeddings,
        "share one cache among sequences": load.unified and (load.sequences or 1) > 1,
        "take a number of output rows": load.output_rows is not None,
    }
    for what, is_requested in refused.items():
        if is_requested:
            raise UsageError(
                f"{FIT_TOOL_NAME} cannot {what}: use xllamacpp (pip install 'edgekit-models[llama]')"
            )
    of_devices = {"placement", "devices", "servers"}
    groups = {"context", "sequences", "batch", "cache"} | (
        of_devices if setup.has_device else set()
    )
    known = {flag.key for flag in TABLE if flag.group in groups}
    # All flags are set: llama.cpp fits unset ones to the free memory.
    values: dict[str, Any] = {"context": 0, "flash_attn": "auto"}
    if setup.has_device:
        values["n_gpu_layers"] = "all"
    requested = given_values(TABLE, load, setup)
    values |= {name: requested[name] for name in requested if name in known - _NOT_OF_FIT_TOOL}
    values["repack"] = setup.repack
    command = [program or find_fit_tool() or FIT_TOOL_NAME, "-m", str(question.path)]
    command += ["--fit-print", "on", "--verbose", *flag_words(TABLE, values)]
    return {"command": command if setup.has_device else [*command, "--device", "none"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyMethod:
    """A program that reports what llama.cpp would allocate."""

    name: str
    mode: LlamaMode  # how it uses llama.cpp
    install: str
    is_here: Callable[[], bool]
    version: Callable[[], str]
    request: Callable[[LoadQuestion], dict[str, Any]]  # for the child process


XLLAMACPP = VerifyMethod(
    name=XLLAMACPP_NAME,
    mode=LlamaMode.SERVER,  # one row of logits for each sequence
    install=INSTALL_XLLAMACPP,
    is_here=has_xllamacpp,
    version=xllamacpp_version,
    request=xllamacpp_request,
)
FIT_TOOL = VerifyMethod(
    name=FIT_TOOL_NAME,
    mode=LlamaMode.LIBRARY,  # every token of a micro-batch may have logits
    install="install llama.cpp, so that llama-fit-params is on the PATH or next to llama-server",
    is_here=has_fit_tool,
    version=fit_tool_version,
    request=fit_tool_request,
)
METHODS = (XLLAMACPP, FIT_TOOL)


def method_of(program: Installation | None) -> VerifyMethod | None:
    """How the build of this program is asked: the wheel, or the tool next to a llama-server. None if it cannot be."""
    if program is None:
        return None
    if program.program == XLLAMACPP_NAME:
        return XLLAMACPP
    tool = Path(program.path).with_name(FIT_TOOL_NAME + Path(program.path).suffix)
    if program.program != SERVER_NAME or not is_program(tool):
        return None
    return replace(
        FIT_TOOL,
        is_here=lambda: True,
        version=partial(fit_tool_version, str(tool)),
        request=partial(fit_tool_request, program=str(tool)),
    )


def choose_method(mode: LlamaMode | None = None, *, really: bool = False) -> VerifyMethod:
    """The first installed method that runs llama.cpp in this mode. EngineError if there is none."""
    fitting = [method for method in METHODS if mode in {None, method.mode}]
    if really:
        fitting = [method for method in fitting if method.name == XLLAMACPP_NAME]
    if not fitting:
        raise UsageError(
            f"only {XLLAMACPP_NAME} can load a model, and it starts llama.cpp as a server"
        )
    for method in fitting:
        if method.is_here():
            return method
    who = "" if mode is None else f" as a {mode.value}"
    raise EngineError(
        f"no llama.cpp found on this machine to run{who}: "
        + ", or ".join(method.install for method in fitting)
    )
