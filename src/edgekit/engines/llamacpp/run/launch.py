"""How llama.cpp is started for `run` and `serve`: a launch, then either xllamacpp's parameters for the child process or
the command line of llama-server.

Fitting to the free memory is off: llama.cpp would plan again and might deviate from the bill.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgekit.bill.types import Load
from edgekit.engines.llamacpp.flags import command_words
from edgekit.engines.llamacpp.run.binding import enum_parameters, parameters
from edgekit.engines.llamacpp.setups import values
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.process import LOAD_TIMEOUT_S, ServerLaunch
from edgekit.engines.program import Address, Installation, LocalWeights
from edgekit.errors import UsageError
from edgekit.sources.filenames import shard_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that llama.cpp is started with."""

    weights: LocalWeights  # the first file of a sharded model
    at: Address = field(default_factory=Address)
    load: Load
    setup: LlamaCppSetup
    sinks: int = 0  # tokens after BOS that stay when the window rolls
    reranks: bool = False  # score texts for a query
    rolling: bool = False  # drop the older half when the window is full
    drafter_load: Load | None = None  # has the types of the drafter's cache; None: those of `load`
    threads: int | None = None  # None: one per core
    environment: Mapping[str, str] = field(default_factory=dict)  # selects and orders the cards
    program: Installation | None = None  # llama-server; None: the xllamacpp wheel
    ram_bytes: int | None = None  # of the bill; None: unknown
    timeout_s: float = LOAD_TIMEOUT_S

    @property
    def title(self) -> str:
        return self.at.alias or self.weights.model.name

    @property
    def rolls(self) -> bool:
        return self.rolling or self.setup.ctx_shift

    @property
    def is_drafted(self) -> bool:
        """True if another model or its own prediction blocks draft tokens."""
        return self.weights.drafter is not None or self.setup.load_mtp

    @property
    def needs_device(self) -> bool:
        """Whether layers are meant to run on a GPU."""
        return self.setup.has_device and self.setup.n_gpu_layers > 0

    @property
    def server(self) -> ServerLaunch:
        """The launch, as far as the process layer needs to know it."""
        model, drafter = self.weights.model, self.weights.drafter
        models = [
            path for first in (model, drafter) if first is not None for path in _shards(first)
        ]
        return ServerLaunch(
            program="llama.cpp",
            title=self.title,
            host=self.at.host,
            port=self.at.port,
            files=(*models, *self._copied),
            mapped=frozenset(models) if self.setup.use_mmap else frozenset(),
            environment=self.environment,
            uses_nvidia=self.setup.uses_nvidia,
            ram_bytes=self.ram_bytes,
            timeout_s=self.timeout_s,
        )

    @property
    def cors_origins(self) -> str:
        """CORS is allowed only with an API key: otherwise any web page could use the server."""
        return "*" if self.at.api_key else "localhost"

    @property
    def access_in_environment(self) -> Mapping[str, str]:
        """Who may use llama-server: a key must not show in the list of processes, and llama-server before July 2026
        would not know --cors-origins.
        """
        key = {"LLAMA_API_KEY": self.at.api_key} if self.at.api_key else {}
        return {"LLAMA_ARG_CORS_ORIGINS": self.cors_origins, **key}

    @property
    def _copied(self) -> tuple[Path, ...]:
        """Adapters and projectors: llama.cpp always copies them into memory."""
        adapters, projector = self.weights.adapters, self.weights.projector
        return adapters if projector is None else (*adapters, projector)


def _shards(path: Path) -> list[Path]:
    shards = map(path.with_name, shard_names(path.name))
    return [shard for shard in shards if shard.exists()] or [path]


_VERBOSITY = 4  # from this verbosity on, llama.cpp logs its buffers
# cpp-httplib keeps a thread per open connection, until 5 s after its last request. With fewer threads than clients,
# a client would wait that long. llama.cpp's default is one per slot plus four; a waiting thread costs about 10 KiB.
_HTTP_THREADS = 64
_SPARE_TOKENS = 4  # server-context.cpp: sinks are limited to the window minus these
_OFFLOAD_ALL = -1
_RANKS = {"pooling_type": ("llama_pooling_type", "LLAMA_POOLING_TYPE_RANK")}
_BUILT_IN = "chatml"  # llama.cpp's own template, which always works
_TYPES = {True: "COMMON_SPECULATIVE_TYPE_DRAFT_MTP", False: "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE"}


def make_settings(launch: Launch) -> dict[str, Any]:
    """The child's settings. UsageError if llama.cpp cannot be started like this."""
    _check_launch(launch)
    projector, key = launch.weights.projector, launch.at.api_key
    server: dict[str, Any] = {
        "hostnames": [launch.at.host],
        "port": launch.at.port,
        "api_keys": [key] if key else [],
        "cors_origins": launch.cors_origins,
        "verbosity": _VERBOSITY,
        "n_threads_http": _HTTP_THREADS,
        "chat_template": "" if launch.at.chats else _BUILT_IN,
        **({"model_alias": [launch.at.alias]} if launch.at.alias else {}),
    }
    session = {
        "n_keep": launch.sinks,
        "ctx_shift": launch.rolls,
        "no_mmproj": projector is None,
        "mmproj_use_gpu": launch.setup.has_device,
        "fit_params": False,
        "warmup": True,  # allocate now, not with the first request
    }
    return {
        "parent": os.getpid(),
        "timeout_s": launch.timeout_s,
        "model": str(launch.weights.model),
        "stop_at": None,
        "needs_device": launch.needs_device,
        "threads": launch.threads,
        "parameters": server | parameters(launch.load, launch.setup) | session,
        "enums": enum_parameters(launch.load, launch.setup) | (_RANKS if launch.reranks else {}),
        "drafter": _drafter(launch),
        "adapters": [str(path) for path in launch.weights.adapters],
        "projector": None if projector is None else str(projector),
    }


def server_words(launch: Launch) -> list[str]:
    """The command line of llama-server. UsageError if llama.cpp cannot be started like this."""
    _check_launch(launch)
    if launch.program is None:
        raise TypeError("this launch is for the wheel")
    load, setup, weights = launch.load, launch.setup, launch.weights
    # What is always set, because llama-server would otherwise choose it itself.
    flags: dict[str, Any] = values(load, setup) | {
        "context": load.context_tokens or 0,
        "n_gpu_layers": setup.n_gpu_layers if setup.has_device else 0,
        "backend": setup.backend.value,
        "ctx_shift": launch.rolls or None,
        "mmproj": None if weights.projector is None else str(weights.projector),
    }
    words = [launch.program.path, "-m", str(weights.model), *command_words(flags, setup.rules)]
    words += ["--fit", "off", "--keep", str(launch.sinks)]
    words += ["-lv", str(_VERBOSITY), "--log-colors", "off", "--log-timestamps", "--log-prefix"]
    words += ["--host", launch.at.host, "--port", str(launch.at.port)]
    words += ["--threads-http", str(_HTTP_THREADS), "--metrics"]
    if launch.reranks:
        words.append("--reranking")
    if weights.projector is None:
        words.append("--no-mmproj")
    elif not setup.has_device:
        words.append("--no-mmproj-offload")
    if weights.adapters:
        words += ["--lora", ",".join(map(str, weights.adapters))]
    if weights.drafter is not None:
        drafter = launch.drafter_load or load
        words += ["-md", str(weights.drafter), "-ngld", "all" if setup.has_device else "0"]
        for name, kind in (("-ctkd", drafter.cache_k), ("-ctvd", drafter.cache_v)):
            words += [] if kind is None else [name, kind.name]
    if launch.is_drafted and setup.draft_max:
        words += ["--spec-draft-n-max", str(setup.draft_max)]
    if launch.threads is not None:
        words += ["-t", str(launch.threads), "-tb", str(launch.threads)]
    if not launch.at.chats:
        words += ["--chat-template", _BUILT_IN]
    if launch.at.alias:
        words += ["--alias", launch.at.alias]
    return words


def _check_launch(launch: Launch) -> None:
    """Raises UsageError if llama.cpp cannot be started like this."""
    if launch.load.output_rows is not None:
        raise UsageError("llama-server chooses the number of output rows itself")
    if launch.setup.mix is not None:
        raise UsageError(
            f"this file is not {launch.setup.mix}, so it cannot be run as that: quantise "
            f"it first (llama-quantize {launch.weights.model.name} OUTPUT.gguf {launch.setup.mix})"
        )
    window = launch.load.context_tokens
    if window is not None and window <= _SPARE_TOKENS:
        raise UsageError(
            f"a context of {window:,} tokens is too short: llama.cpp keeps "
            f"{_SPARE_TOKENS} of them free, so the minimum is {_SPARE_TOKENS + 1}"
        )
    if launch.sinks < 0 or (window is not None and launch.sinks > window - _SPARE_TOKENS):
        most = "" if window is None else f" and at most {window - _SPARE_TOKENS:,}"
        raise UsageError(f"the number of sinks must be at least 0{most} (got {launch.sinks:,})")
    if launch.rolls and launch.weights.projector is not None:
        raise UsageError(
            "llama.cpp cannot combine a rolling context with a projector: leave out one of them"
        )
    if launch.threads is not None and launch.threads < 1:
        raise UsageError(f"the number of threads must be at least 1 (got {launch.threads})")


def _drafter(launch: Launch) -> dict[str, Any] | None:
    """The drafter is placed like the model, with the given cache types; a model's own blocks use f16."""
    setup = launch.setup
    if not launch.is_drafted:
        return None
    load = launch.drafter_load or launch.load
    caches = {} if launch.weights.drafter is None else enum_parameters(load, setup)
    placement: dict[str, Any] = {"n_gpu_layers": _OFFLOAD_ALL if setup.has_device else 0}
    if setup.draft_max:
        placement["n_max"] = setup.draft_max
    return {
        "path": None if launch.weights.drafter is None else str(launch.weights.drafter),
        "type": _TYPES[launch.weights.drafter is None],
        "parameters": placement,
        "enums": {name: kind for name, kind in caches.items() if name.startswith("cache_type")},
    }
