"""The child process that runs llama.cpp for `verify`, `calibrate`, `run`, `serve` and `embed`; it may crash.

Run as a script: `python -P child.py [TITLE]`. It imports nothing from EdgeKit. The first line of standard input is the
request. Standard output carries only JSON lines for the parent; everything that the engine prints goes to standard
error, like its log.
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

# On standard error: everything logged while loading came before this line.
LOADED = "edgekit-loaded"

# Today's name of a parameter -> the name and the value that older wheels of xllamacpp take.
OLDER: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "hostnames": ("hostname", lambda names: names[0]),  # until 2026.9
    "load_mode": ("use_mmap", lambda member: member.endswith("_MMAP")),  # until 2026.7
}
# What wheels without the parameter do anyway: requesting that value is fine.
ABSENT = {"load_mtp": False, "cors_origins": "*"}

_LOG_PATIENCE_S = 1.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_QUIETER = 3  # llama-server's default verbosity
_SPARE_S = 5.0  # the parent's own deadline comes first
_PROMPT = "The quick brown fox jumps over the lazy dog"
_NEW_TOKENS = 8
_FIRST_PROMPT = 32
_SHARES = 8  # of the time: three runs of a prompt and new tokens, and the first short one

Tell = Callable[..., None]


def main() -> None:
    tell = _parent()
    request = json.loads(sys.stdin.buffer.readline() or b"null")
    if request is None:
        os._exit(1)  # the parent is gone
    _JOBS[request["job"]](request, tell)


def _parent() -> Tell:
    """A function that sends messages to the parent. Standard output of all other code becomes standard error."""
    channel = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def tell(**message: Any) -> None:
        with suppress(BrokenPipeError):  # the end of standard input shows that it is gone
            channel.write(json.dumps(message) + "\n")
            channel.flush()

    return tell


def _limit(timeout_s: float | None = None, memory_bytes: int | None = None) -> None:
    """Limits this process: no core dump, the allowed memory, and a timer that ends it if the parent is gone."""
    if timeout_s is not None and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, timeout_s + _SPARE_S)
    try:
        import resource
    except ImportError:  # Windows
        return
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is not None:
        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        limit = memory_bytes
        if hard_limit != resource.RLIM_INFINITY:
            limit = min(memory_bytes, hard_limit)
        with suppress(ValueError, OSError):  # macOS does not let it be set
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))


def _fail(why: str) -> NoReturn:
    sys.stderr.write(f"error: {why}\n")
    sys.stderr.flush()
    os._exit(1)


# --- parameters


def make_parameters(xllamacpp: Any, request: dict[str, Any]) -> Any:
    """CommonParams for the request. AttributeError if this wheel lacks a requested parameter."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = request["model"]
    for name, value in request["parameters"].items():
        _set(parameters, name, set(value) if name == "model_alias" else value)
    for name, (kind, member) in request["enums"].items():
        if hasattr(parameters, name):
            setattr(parameters, name, getattr(getattr(xllamacpp, kind), member))
        else:
            _set(parameters, name, member)
    if request.get("threads") is not None:
        for threads in (parameters.cpuparams, parameters.cpuparams_batch):
            threads.n_threads = request["threads"]
    if (drafter := request.get("drafter")) is not None:
        draft = parameters.speculative.draft
        if drafter["path"] is not None:
            draft.mparams.path = drafter["path"]
        kind = getattr(xllamacpp.common_speculative_type, drafter["type"])
        parameters.speculative.types = [kind]
        for name, value in drafter["parameters"].items():
            setattr(draft, name, value)
        for name, (kind, member) in drafter["enums"].items():
            setattr(draft, name, getattr(getattr(xllamacpp, kind), member))
    adapters = [*request.get("adapters", ()), *filter(None, [request.get("stop_at")])]
    if adapters:
        parameters.lora_adapters = [_adapter(xllamacpp, path) for path in adapters]
    if request.get("projector") is not None:
        parameters.mmproj.path = request["projector"]
    return parameters


def _set(parameters: Any, name: str, value: Any) -> None:
    """Sets a parameter under its name in this wheel. AttributeError if the wheel lacks it."""
    if not hasattr(parameters, name):
        if name in OLDER:
            name, translate = OLDER[name]
            value = translate(value)
        elif ABSENT.get(name) == value:
            return
    setattr(parameters, name, value)


def _adapter(xllamacpp: Any, path: str) -> Any:
    adapter = xllamacpp.CommonAdapterLoraInfo()
    adapter.path, adapter.scale = path, 1.0
    return adapter


def _start(request: dict[str, Any], tell: Tell) -> tuple[Any, Any]:
    """Imports xllamacpp and starts its server with the model loaded."""
    import xllamacpp

    try:
        if request.get("needs_device"):
            _require_device(xllamacpp)
        parameters = make_parameters(xllamacpp, request)
    except (AttributeError, TypeError, ValueError) as error:
        _fail(f"this version of xllamacpp does not accept a parameter that it should: {error}")
    tell(version=_llama_version(xllamacpp), **_memory("started"))
    try:
        return xllamacpp, xllamacpp.Server(parameters)
    except RuntimeError as error:
        _write_out_log(xllamacpp)
        _fail(str(error))


def _require_device(xllamacpp: Any) -> None:
    """Fails if there is no device: llama.cpp would silently put everything into RAM."""
    kinds = {str(device["type"]).rpartition("_")[2] for device in xllamacpp.get_device_info()}
    if not kinds & {"GPU", "IGPU"}:
        _fail(
            "this build of xllamacpp finds no GPU on this machine, but layers are meant to run on one"
        )


# --- verify and calibrate


def _verify(request: dict[str, Any], tell: Tell) -> None:
    """Runs llama.cpp's own tool, or loads the model and decodes, and reports the memory after each step."""
    _limit(request["timeout_s"], request.get("memory_bytes"))
    if "command" in request:
        _hold_back_output()
        os.execv(request["command"][0], request["command"])  # noqa: S606 - no shell
    _, server = _start(request, tell)
    tell(**_memory("context created"))
    tell(**_memory(_work(server, embeddings=request["embeddings"]), request["model"]))
    if request.get("pacing"):
        _measure_speed(server, request["pacing"], request["model"], tell)
    os._exit(0)  # no need to tear it all down in order


def _hold_back_output() -> None:
    """Redirects standard output to a full pipe, which blocks the tool at its final output until the parent has read
    the log. Otherwise the tool may exit before its logging thread is done (common/log.cpp).
    """
    unread, full = os.pipe()
    os.set_inheritable(unread, True)
    os.set_blocking(full, False)
    with suppress(BlockingIOError):
        while True:
            os.write(full, bytes(4096))
    os.set_blocking(full, True)
    os.dup2(full, sys.stdout.fileno())


def _work(server: Any, *, embeddings: bool) -> str:
    """Embeds or completes a short prompt, and returns a description of the work done."""
    if embeddings:
        _require_answer(server.handle_embeddings({"input": _PROMPT}))
        return "text embedded"
    body = {"prompt": _PROMPT, "n_predict": _NEW_TOKENS, "ignore_eos": True, "temperature": 0}
    _require_answer(server.handle_completions(body))
    return f"{_NEW_TOKENS} tokens decoded"


def _require_answer(reply: Any) -> None:
    """Fails with the reply if it is an error."""
    if isinstance(reply, dict) and not reply.keys() & {"choices", "data"}:
        _fail(json.dumps(reply)[:400])


def _measure_speed(server: Any, limits: dict[str, Any], model: str, tell: Tell) -> None:
    """Measures speed with prompts of random tokens, all different so that no cached prefix is reused. The first is
    short: its speed determines the length of the others. No run is started that would end after the time is up.
    """
    generator = random.Random(0)  # noqa: S311 - not for secrets
    deadline = time.monotonic() + limits["seconds"]
    speed = _time_completion(server, generator, limits, _FIRST_PROMPT, _NEW_TOKENS)
    share_s = limits["seconds"] / _SHARES
    prompt = min(limits["prompt_tokens"], int(speed["prompt_per_second"] * share_s))
    prompt = max(_FIRST_PROMPT, prompt)
    new = min(limits["new_tokens"], int(speed["predicted_per_second"] * share_s))
    new = max(_NEW_TOKENS, new)
    for turn in range(limits["times"]):
        began = time.monotonic()
        tell(speed_run=_time_completion(server, generator, limits, prompt, new))
        if turn == 0:
            tell(**_memory(f"{prompt} tokens read", model))
        now = time.monotonic()
        if now + (now - began) > deadline:
            break


def _time_completion(
    server: Any, generator: random.Random, limits: dict[str, Any], prompt: int, new: int
) -> dict[str, float]:
    """Completes a prompt of random tokens and returns the engine's token counts and speeds."""
    body = {
        "prompt": [generator.randrange(limits["vocabulary"]) for _ in range(prompt)],
        "n_predict": new,
        "ignore_eos": True,
        "temperature": 0,
        "cache_prompt": False,
    }
    reply = server.handle_completions(body)
    _require_answer(reply)
    names = ("prompt_n", "prompt_per_second", "predicted_n", "predicted_per_second")
    return {name: reply["timings"][name] for name in names}


# --- run and serve


def _serve(request: dict[str, Any], tell: Tell) -> None:
    """Serves requests until standard input ends. The engine is not shut down cleanly, because that would wait for
    abandoned requests.
    """
    _die_with_parent()
    if sys.platform == "linux" and os.getppid() != request["parent"]:
        os._exit(1)  # the parent was gone before the kernel could watch it
    _limit(request["timeout_s"])
    xllamacpp, server = _start(request, tell)
    _write_out_log(xllamacpp)
    sys.stderr.write(f"\n{LOADED}\n")
    sys.stderr.flush()
    with suppress(AttributeError, OSError):  # otherwise twenty lines for each request
        _library(xllamacpp)._Z30common_log_set_verbosity_tholdi(_QUIETER)  # noqa: SLF001 - C++'s name for it
    for name in ("SIGTERM", "SIGINT"):  # the engine's own handlers end only its loop
        signal.signal(getattr(signal, name), lambda *_: os._exit(0))
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    tell(address=server.listening_address, **_memory("loaded"))
    sys.stdin.buffer.read()
    os._exit(0)


def _die_with_parent() -> None:
    """Asks the kernel to kill this process when the parent dies. While the model loads, no Python code
    runs here, so only the kernel can end this process. On systems other than Linux an orphan finishes loading, then
    exits.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# --- embed


def _embed(request: dict[str, Any], tell: Tell) -> None:
    """Answers lines of tokens with lines of vectors, until standard input ends."""
    _limit()
    try:
        import xllamacpp
    except ImportError as error:  # a wheel for another GPU library
        tell(error=str(error))
        os._exit(1)
    try:
        server = xllamacpp.Server(make_parameters(xllamacpp, request))
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        _write_out_log(xllamacpp)
        tell(error=str(error))
        os._exit(1)
    tell(ready=True)
    for line in sys.stdin.buffer:
        tell(**_vectors(server, json.loads(line)["tokens"]))
    os._exit(0)  # no need to tear it all down in order


def _vectors(server: Any, texts: list[list[int]]) -> dict[str, Any]:
    """A message with the vectors of the texts as base64, not normalised, or with the error."""
    body = {"input": texts, "encoding_format": "base64", "embd_normalize": -1}
    try:
        reply = server.handle_embeddings(body)
    except RuntimeError as error:
        return {"error": str(error)}
    if "data" not in reply:
        return {"error": json.dumps(reply)[:1000]}
    entries = sorted(reply["data"], key=lambda entry: entry["index"])
    return {"vectors": [entry["embedding"] for entry in entries]}


# --- what this build can use


def _devices(request: dict[str, Any], tell: Tell) -> None:
    """Reports the version of the library and the devices that it finds."""
    _limit(request["timeout_s"])
    try:
        import xllamacpp
    except ImportError as error:  # a wheel for another GPU library
        _fail(str(error))
    devices = [[device["name"], device["description"]] for device in xllamacpp.get_device_info()]
    tell(version=_llama_version(xllamacpp), devices=devices)
    os._exit(0)


# --- memory, and llama.cpp's C functions


def _memory(when: str, model: str | None = None) -> dict[str, Any]:
    """A message with the memory of this process; with `model`, also the resident bytes of its mapped files."""
    memory = read_status()
    if model is not None and memory:
        memory["Model"] = mapped_bytes(model)
    return {"when": when, "memory": memory}


def mapped_bytes(model: str) -> int:
    """Resident bytes of a model's mapped files, from /proc/self/smaps. `model` is the first file."""
    first_file = os.path.realpath(model)
    folder, resident_bytes, is_model_file = os.path.dirname(first_file), 0, False  # noqa: PTH120 - the child imports little
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - the child imports little
        for line in lines:
            words = line.split(None, 5)
            if "-" in words[0] and len(words) >= 5:
                path = words[5].strip().removesuffix(" (deleted)") if len(words) > 5 else ""
                is_shard = path.endswith(".gguf") and os.path.dirname(path) == folder  # noqa: PTH120 - the child imports little
                is_model_file = path == first_file or is_shard
            elif is_model_file and words[0] == "Rss:":
                resident_bytes += int(words[1]) * 1024
    return resident_bytes


def read_status(process: int | str = "self") -> dict[str, int]:
    """VmRSS, RssAnon, RssFile and VmSwap of a process in bytes; empty without /proc."""
    sizes: dict[str, int] = {}
    try:
        with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as lines:  # noqa: PTH123 - the child imports little
            for line in lines:
                name, _, value = line.partition(":")
                if name in {"VmRSS", "RssAnon", "RssFile", "VmSwap"}:
                    sizes[name] = int(value.split()[0]) * 1024
    except OSError:
        pass
    return sizes


def _llama_version(xllamacpp: Any) -> str | None:
    """The library's version; None for builds that do not export the function."""
    with suppress(AttributeError, OSError):
        version = _library(xllamacpp).llama_version
        version.restype = ctypes.c_char_p
        return str(version().decode())
    return None


def _write_out_log(xllamacpp: Any) -> None:
    """Flushes the log, whose thread lags on a busy machine: common_log_flush(common_log_main())."""
    try:
        library = _library(xllamacpp)
        log, flush = library._Z15common_log_mainv, library._Z16common_log_flushP10common_log  # noqa: SLF001
    except (AttributeError, OSError):
        time.sleep(_LOG_PATIENCE_S)
        return
    log.restype, flush.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    flush(log())


def _library(xllamacpp: Any) -> Any:
    return ctypes.CDLL(xllamacpp.xllamacpp.__file__)


_JOBS: dict[str, Callable[[dict[str, Any], Tell], None]] = {
    "verify": _verify,
    "serve": _serve,
    "embed": _embed,
    "devices": _devices,
}

if __name__ == "__main__":
    main()
