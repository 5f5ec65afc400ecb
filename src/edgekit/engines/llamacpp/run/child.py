"""The process that may die: llama.cpp with its own HTTP server, until standard input ends.

It is run as a script, and the first line it reads is its settings. Of EdgeKit only the script that asks the same
engine is imported, which imports nothing else. Standard output is for the parent alone: what the engine prints
goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from edgekit.engines.llamacpp.verify.child import (
    llama_version,
    load_library,
    make_adapter,
    make_parameters,
    read_status,
    write_out_log,
)

LOADED = "edgekit-loaded"  # on standard error: all that the engine told while it loaded came before

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_QUIETER = 3  # the verbosity of a llama-server that was not asked for more
_SPARE_S = 5.0  # the parent's own deadline comes first


def main() -> None:
    tell = _teller()
    _die_with_parent(signal.SIGKILL)
    settings = json.loads(sys.stdin.buffer.readline() or b"null")
    if settings is None or (sys.platform == "linux" and os.getppid() != settings["parent"]):
        os._exit(1)  # it was gone before we could ask to be told
    _prepare(settings["timeout_s"])
    server = _load(settings, tell)
    _until_the_end(server, tell, goes_with_parent=settings["goes_with_parent"])


def _teller() -> Callable[..., None]:
    """Keeps the way to the parent, and turns standard output to standard error for everybody else."""
    way = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def tell(**words: Any) -> None:
        with suppress(BrokenPipeError):  # nobody is there: the end of standard input will say so
            way.write(json.dumps(words) + "\n")
            way.flush()

    return tell


def _die_with_parent(number: int) -> None:
    """While the model is loaded no line of Python runs here, so only the kernel can end us. Linux alone does.

    Elsewhere an orphan loads to the end, and leaves then.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _prepare(timeout_s: float) -> None:
    """No core file as large as the model, and an end even where the parent does not ask for it."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, timeout_s + _SPARE_S)
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _load(settings: dict[str, Any], tell: Callable[..., None]) -> Any:
    import xllamacpp

    try:
        if settings["needs_device"]:
            _require_device(xllamacpp)
        parameters = _parameters(xllamacpp, settings)
    except (AttributeError, TypeError, ValueError) as error:
        _fail(f"this version of xllamacpp does not accept a parameter that it should: {error}")
    tell(version=llama_version(xllamacpp), memory=read_status())
    try:
        server = xllamacpp.Server(parameters)
    except RuntimeError as error:
        write_out_log(xllamacpp)
        _fail(str(error))
    write_out_log(xllamacpp)
    sys.stderr.write(f"\n{LOADED}\n")
    sys.stderr.flush()
    with suppress(AttributeError, OSError):  # each request would be told in twenty lines
        load_library(xllamacpp)._Z30common_log_set_verbosity_tholdi(_QUIETER)  # noqa: SLF001 - C++'s name for it
    return server


def _require_device(xllamacpp: Any) -> None:
    """Without one llama.cpp would put everything into the host's memory, and say nothing."""
    kinds = {str(device["type"]).rpartition("_")[2] for device in xllamacpp.get_device_info()}
    if not kinds & {"GPU", "IGPU"}:
        _fail(
            "this build of xllamacpp finds no GPU on this machine, but layers are meant to run on one"
        )


def _parameters(xllamacpp: Any, settings: dict[str, Any]) -> Any:
    alias = settings["parameters"].pop("model_alias", ())
    parameters = make_parameters(xllamacpp, settings)
    parameters.model_alias = set(alias)
    if settings["threads"] is not None:
        for threads in (parameters.cpuparams, parameters.cpuparams_batch):
            threads.n_threads = settings["threads"]
    if settings["drafter"] is not None:
        _add_drafter(xllamacpp, parameters.speculative, settings["drafter"])
    parameters.lora_adapters = [make_adapter(xllamacpp, path) for path in settings["adapters"]]
    if settings["projector"] is not None:
        parameters.mmproj.path = settings["projector"]
    return parameters


def _add_drafter(xllamacpp: Any, speculative: Any, told: dict[str, Any]) -> None:
    draft = speculative.draft
    if told["path"] is not None:
        draft.mparams.path = told["path"]
    speculative.types = [getattr(xllamacpp.common_speculative_type, told["type"])]
    for name, value in told["parameters"].items():
        setattr(draft, name, value)
    for name, (kind, member) in told["enums"].items():
        setattr(draft, name, getattr(getattr(xllamacpp, kind), member))


def _until_the_end(server: Any, tell: Callable[..., None], *, goes_with_parent: bool) -> NoReturn:
    """Requests are answered by the engine's own threads; here the parent is waited for.

    It is not taken down in order: that waits for requests which nobody works on any more.
    """
    for name in (
        "SIGTERM",
        "SIGINT",
    ):  # the engine has put its own in place, which end only its loop
        signal.signal(getattr(signal, name), lambda *_: os._exit(0))
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    if not goes_with_parent:
        _die_with_parent(0)  # the kernel counts threads as parents, and one may end before the rest
    tell(address=server.listening_address, memory=read_status())
    sys.stdin.buffer.read()
    os._exit(0)


def _fail(why: str) -> NoReturn:
    sys.stderr.write(f"error: {why}\n")
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
