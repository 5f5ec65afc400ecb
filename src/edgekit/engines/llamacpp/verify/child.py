"""The process that may die: run as a script, it reads a request, limits itself and asks llama.cpp.

Nothing of EdgeKit is imported here. The engine's log goes to standard error; lines of standard output that
begin with MARK are for the parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

MARK = "edgekit-verify "

# Today's name of a parameter -> the name and the value that older wheels of xllamacpp take.
OLDER: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "hostnames": ("hostname", lambda names: names[0]),  # until 2026.9
    "load_mode": ("use_mmap", lambda member: member.endswith("_MMAP")),  # until 2026.7
}
# How wheels without the parameter behave: asking for just that is fine.
ABSENT = {"load_mtp": False, "cors_origins": "*"}

_LOG_PATIENCE_S = 1.0
_PROMPT = "The quick brown fox jumps over the lazy dog"
_NEW_TOKENS = 8
_FIRST_PROMPT = 32


def main() -> None:
    request = json.loads(sys.stdin.read())
    _limit(request.get("memory_bytes"), request["timeout_s"])
    if "command" in request:
        _hold_back_output()
        os.execv(request["command"][0], request["command"])  # noqa: S606 - no shell
    _start(request)


def _limit(memory_bytes: int | None, timeout_s: float) -> None:
    """No core file, no more memory than allowed, and an end even if the parent is gone."""
    if hasattr(signal, "alarm"):
        signal.alarm(int(timeout_s) + 5)
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
        with suppress(ValueError, OSError):  # macOS does not let it be set
            resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _hold_back_output() -> None:
    """The tool would end before the thread that writes its log is done (common/log.cpp says so).

    What it prints in the end goes to a pipe that is full, so it waits there until the parent has read enough.
    """
    unread, full = os.pipe()
    os.set_inheritable(unread, True)
    os.set_blocking(full, False)
    with suppress(BlockingIOError):
        while True:
            os.write(full, bytes(4096))
    os.set_blocking(full, True)
    os.dup2(full, sys.stdout.fileno())


def _start(request: dict[str, Any]) -> None:
    import xllamacpp

    try:
        parameters = make_parameters(xllamacpp, request)
    except (AttributeError, TypeError, ValueError) as error:
        _fail(f"this version of xllamacpp does not accept a parameter that it should: {error}")
    _tell(version=llama_version(xllamacpp), **_memory("started"))
    try:
        server = xllamacpp.Server(parameters)
    except RuntimeError as error:
        write_out_log(xllamacpp)
        _fail(str(error))
    _tell(**_memory("context created"))
    _tell(**_memory(_work(server, embeddings=request["embeddings"]), request["model"]))
    if request.get("pacing"):
        _pace(server, request["pacing"], request["model"])
    os._exit(0)  # what was asked for is told: no need to take it all down in order


def make_parameters(xllamacpp: Any, request: dict[str, Any]) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = request["model"]
    for name, value in request["parameters"].items():
        _set(parameters, name, value)
    for name, (kind, member) in request["enums"].items():
        if hasattr(parameters, name):
            setattr(parameters, name, getattr(getattr(xllamacpp, kind), member))
        else:
            _set(parameters, name, member)
    if request["stop_at"] is not None:
        parameters.lora_adapters = [make_adapter(xllamacpp, request["stop_at"])]
    return parameters


def _set(parameters: Any, name: str, value: Any) -> None:
    """Set a parameter by its name in this wheel. AttributeError if the wheel cannot do what is asked."""
    if not hasattr(parameters, name):
        if name in OLDER:
            name, translate = OLDER[name]
            value = translate(value)
        elif ABSENT.get(name) == value:
            return
    setattr(parameters, name, value)


def make_adapter(xllamacpp: Any, path: str) -> Any:
    adapter = xllamacpp.CommonAdapterLoraInfo()
    adapter.path, adapter.scale = path, 1.0
    return adapter


def _fail(why: str) -> NoReturn:
    print(f"error: {why}", file=sys.stderr)
    sys.exit(1)


def _work(server: Any, *, embeddings: bool) -> str:
    """What was done with it."""
    if embeddings:
        return _done(server.handle_embeddings({"input": _PROMPT}), "text embedded")
    asked = {"prompt": _PROMPT, "n_predict": _NEW_TOKENS, "ignore_eos": True, "temperature": 0}
    return _done(server.handle_completions(asked), f"{_NEW_TOKENS} tokens decoded")


def _done(reply: Any, what: str) -> str:
    if isinstance(reply, dict) and not reply.keys() & {"choices", "data"}:
        _fail(json.dumps(reply)[:400])
    return what


def _pace(server: Any, pacing: dict[str, Any], model: str) -> None:
    """Prompts of made-up tokens, none like the one before, so that nothing is remembered of it.

    The first is short: from its speed follows how long the others may be.
    """
    ids = random.Random(0)  # noqa: S311 - nothing is kept secret by it
    end = time.monotonic() + pacing["seconds"]
    speed = _timed(server, ids, pacing, _FIRST_PROMPT, _NEW_TOKENS)
    share_s = pacing["seconds"] / 4
    prompt, new = (
        max(least, min(pacing[most], int(speed[f"{what}_per_second"] * share_s)))
        for least, most, what in (
            (_FIRST_PROMPT, "prompt_tokens", "prompt"),
            (_NEW_TOKENS, "new_tokens", "predicted"),
        )
    )
    for turn in range(pacing["times"]):
        _tell(paced=_timed(server, ids, pacing, prompt, new))
        if turn == 0:
            _tell(**_memory(f"{prompt} tokens read", model))
        if time.monotonic() > end:
            break


def _timed(
    server: Any, ids: random.Random, pacing: dict[str, Any], prompt: int, new: int
) -> dict[str, float]:
    """The engine's own account of one completion."""
    asked = {
        "prompt": [ids.randrange(pacing["vocabulary"]) for _ in range(prompt)],
        "n_predict": new,
        "ignore_eos": True,
        "temperature": 0,
        "cache_prompt": False,
    }
    reply = server.handle_completions(asked)
    _done(reply, "")
    names = ("prompt_n", "prompt_per_second", "predicted_n", "predicted_per_second")
    return {name: reply["timings"][name] for name in names}


def _tell(**words: Any) -> None:
    print(MARK + json.dumps(words), flush=True)


def _memory(when: str, model: str | None = None) -> dict[str, Any]:
    memory = read_status()
    if model is not None and memory:
        memory["Model"] = mapped_bytes(model)
    return {"when": when, "memory": memory}


def mapped_bytes(model: str) -> int:
    """What is in memory of a model's files, the first of which is named; as /proc/self/smaps has it."""
    first = os.path.realpath(model)
    folder, found, is_its = os.path.dirname(first), 0, False  # noqa: PTH120 - nothing of EdgeKit, and no more
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - the child imports little
        for line in lines:
            words = line.split(None, 5)
            if "-" in words[0] and len(words) >= 5:
                path = words[5].strip().removesuffix(" (deleted)") if len(words) > 5 else ""
                shard = path.endswith(".gguf") and os.path.dirname(path) == folder  # noqa: PTH120 - the child imports little
                is_its = path == first or shard
            elif is_its and words[0] == "Rss:":
                found += int(words[1]) * 1024
    return found


def read_status(process: int | str = "self") -> dict[str, int]:
    """VmRSS, RssAnon, RssFile, VmSwap of a process in bytes; nothing where there is no /proc."""
    found: dict[str, int] = {}
    try:
        with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as lines:  # noqa: PTH123 - the child imports little
            for line in lines:
                name, _, rest = line.partition(":")
                if name in {"VmRSS", "RssAnon", "RssFile", "VmSwap"}:
                    found[name] = int(rest.split()[0]) * 1024
    except OSError:
        pass
    return found


def llama_version(xllamacpp: Any) -> str | None:
    """What the library that the binding is calls itself; other builds keep their functions to themselves."""
    with suppress(AttributeError, OSError):
        told = load_library(xllamacpp).llama_version
        told.restype = ctypes.c_char_p
        return str(told().decode())
    return None


def write_out_log(xllamacpp: Any) -> None:
    """Its log is written by a thread, which is behind on a busy machine: common_log_flush(common_log_main())."""
    try:
        library = load_library(xllamacpp)
        log, flush = library._Z15common_log_mainv, library._Z16common_log_flushP10common_log  # noqa: SLF001
    except (AttributeError, OSError):
        time.sleep(_LOG_PATIENCE_S)
        return
    log.restype, flush.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    flush(log())


def load_library(xllamacpp: Any) -> Any:
    return ctypes.CDLL(xllamacpp.xllamacpp.__file__)


if __name__ == "__main__":
    main()
