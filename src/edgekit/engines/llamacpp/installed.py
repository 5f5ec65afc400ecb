"""The programs on this machine that run llama.cpp: xllamacpp, llama-server, Ollama and LM Studio.

What they print: common/arg.cpp, common/build-info.cpp and the names of devices in ggml/src of llama.cpp @ 0c1e570.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from edgekit.engines import lm_studio, ollama
from edgekit.engines.discovery import FoundProgram, ask_program, in_parallel
from edgekit.engines.llamacpp.run.binding import (
    FIT_TOOL_NAME,
    SERVER_NAME,
    XLLAMACPP_NAME,
    child_environment,
    find_fit_tools,
    has_xllamacpp,
    start_child,
    xllamacpp_version,
)
from edgekit.engines.llamacpp.stored_version import find_servers, store_version
from edgekit.engines.llamacpp.types import (
    NEWEST,
    Backend,
    named_version,
    read_version,
    version_name,
    wheel_version,
)
from edgekit.engines.program import Installation
from edgekit.engines.protocol import ANSWER_S
from edgekit.errors import EngineError, UsageError, one_line
from edgekit.machine.surroundings import Surroundings


class _Backend(NamedTuple):
    name: str
    devices: tuple[str, ...]  # how the names of its devices begin
    library: str  # libggml-NAME.so, if it is a library of its own
    rules: Backend | None = None  # None: EdgeKit has no rules for it


# The fastest first. Others are not for GPUs: BLAS, RPC ...
_BACKENDS = (
    _Backend("CUDA", ("CUDA",), "cuda", Backend.CUDA),
    _Backend("ROCm", ("ROCm",), "hip", Backend.HIP),
    _Backend("Metal", ("MTL", "Metal"), "metal", Backend.METAL),
    _Backend("MUSA", ("MUSA",), "musa"),
    _Backend("SYCL", ("SYCL",), "sycl", Backend.SYCL),
    _Backend("CANN", ("CANN",), "cann"),
    _Backend("Vulkan", ("Vulkan",), "vulkan", Backend.VULKAN),
    _Backend("OpenVINO", ("OPENVINO",), "openvino"),
    _Backend("WebGPU", ("WebGPU",), "webgpu"),
    _Backend("OpenCL", ("GPUOpenCL",), "opencl"),
    _Backend("Hexagon", ("HTP",), "hexagon"),
)
_CPU = "CPU"
_OLD_VERSION = re.compile(r"(\d{1,6}) \((\w{1,40})\)")  # until July 2026: "9294 (0c1e570)"
_VERSION = re.compile(
    r"(\d{1,3}\.\d{1,3}\.\d{1,3}[\w.-]{0,20})(?: \(build (\d{1,6}), commit (\w{1,40})\))?"
)
_UNKNOWN_COMMIT = "unknown"
_LEAST_BUILD = 1000  # what was not built in its repository reports build 0 or 1
_DEVICE = re.compile(r"  (\w{1,32}): (.{1,200}) \(\d{1,12} MiB, \d{1,12} MiB free\)")
_LIBRARY = re.compile(r"(?:lib)?ggml-([a-z]+)(?:-[\w.-]+)?\.(?:so|dylib|dll)(?:\.[\d.]+)?")
_NO_CUDA = re.compile(
    r"failed to initialize (CUDA|ROCm|MUSA)"
)  # a build without separate libraries
_MAX_LIBRARIES = 1000  # files of a folder that are looked at
_MAX_DEVICES = 64
_NAME_CHARS = 100
_LAST_LINES = 4


Question = Callable[[], Iterable[Installation]]  # to one program


def installations(
    timeout_s: float = ANSWER_S, here: Surroundings | None = None
) -> tuple[Installation, ...]:
    """Those that find a GPU first, the fastest backend before the others; last those that EdgeKit cannot start."""
    here = here or Surroundings()
    servers = find_servers(here)
    found = _in_order(
        (
            *_wheel_and_servers(servers, timeout_s),
            *(partial(_fit_tool, found, timeout_s) for found in find_fit_tools(here, servers)),
            partial(_ollama, here, timeout_s),
            _lm_studio,
        )
    )
    store_version(found, servers)
    return found


def wheel_and_servers(servers: Sequence[FoundProgram]) -> tuple[Installation, ...]:
    """What `run` can start, the best first."""
    return _in_order(_wheel_and_servers(servers, ANSWER_S))


def _wheel_and_servers(servers: Sequence[FoundProgram], timeout_s: float) -> Iterator[Question]:
    yield partial(_wheel, timeout_s)
    yield from (partial(_server, found, timeout_s) for found in servers)


def _in_order(questions: Iterable[Question]) -> tuple[Installation, ...]:
    answers = in_parallel(lambda question: tuple(question()), questions)
    found = (installation for answer in answers for installation in answer)
    return tuple(sorted(found, key=lambda item: (bool(item.problem), _rank(item.devices))))


def _server(found: FoundProgram, timeout_s: float) -> Iterator[Installation]:
    """A llama-server, asked for its version and its devices at the same time."""
    path = str(found.path)
    version, listed = in_parallel(
        lambda flag: ask_program(
            [path, flag], timeout_s=timeout_s, environment=child_environment({})
        ),
        ("--version", "--list-devices"),
    )
    shown = _read_version(version.text)
    devices = read_devices(listed.text)
    problem = version.problem or shown.problem or listed.problem
    yield Installation(
        program=SERVER_NAME,
        origin=found.origin,
        path=path,
        version=shown.version,
        build=shown.build,
        backends=() if problem else _backends(devices, _folders_of(found.path), listed.text),
        devices=devices,
        rules_version=shown.rules_version,
        problem=problem,
    )


def _fit_tool(found: FoundProgram, timeout_s: float) -> Iterator[Installation]:
    """llama-fit-params loads no model: it is for `verify`."""
    path = str(found.path)
    version = ask_program(
        [path, "--version"], timeout_s=timeout_s, environment=child_environment({})
    )
    shown = _read_version(version.text)
    problem = version.problem or shown.problem
    yield Installation(
        program=FIT_TOOL_NAME,
        origin=found.origin,
        path=path,
        version=shown.version,
        build=shown.build,
        backends=() if problem else _backends((), _folders_of(found.path)),
        rules_version=shown.rules_version,
        problem=problem,
    )


class _ShownVersion(NamedTuple):
    version: str = ""
    build: str = ""
    rules_version: str = ""
    problem: str = ""


def _read_version(text: str) -> _ShownVersion:
    """The answer to --version, which may follow lines of a log."""
    lines = [line.strip() for line in text.splitlines()]
    shown = next((line for line in lines if line.startswith("version: ")), "")
    number = shown.removeprefix("version: ")
    if old := _OLD_VERSION.match(number):
        build, version, commit = int(old[1]), "", old[2]
        version = f"b{build}" if build >= _LEAST_BUILD else ""
    elif new := _VERSION.match(number):
        build, version, commit = int(new[2] or 0), new[1], new[3] or ""
    else:
        first = one_line(next(filter(None, lines), ""))
        return _ShownVersion(
            problem=f"--version printed {first!r}, which is not a llama.cpp version"
        )
    commit = "" if commit == _UNKNOWN_COMMIT else commit
    is_numbered = build >= _LEAST_BUILD and not old
    result = _ShownVersion(version=version, build=f"b{build}" if is_numbered else commit)
    if not version:  # compiled from an archive: taken for a new one
        return result._replace(rules_version=version_name(NEWEST, None))
    try:
        return result._replace(rules_version=version_name(*read_version(number)))
    except UsageError as error:
        return result._replace(problem=str(error))


def read_devices(text: str) -> tuple[str, ...]:
    """The GPUs in the answer to --list-devices: "CUDA0: NVIDIA GeForce RTX 4090"."""
    _, _, listed = text.partition("Available devices:\n")
    matches = (_DEVICE.fullmatch(line.rstrip("\r")) for line in listed.split("\n"))
    devices = (
        f"{match[1]}: {one_line(match[2], _NAME_CHARS)}"
        for match in matches
        if match and _backend_of(match[1]) is not None
    )
    return tuple(islice(devices, _MAX_DEVICES))


def _backend_of(device: str) -> _Backend | None:
    """The backend for GPUs that a device belongs to: CUDA for "CUDA0: NVIDIA GeForce RTX 4090"."""
    return next((backend for backend in _BACKENDS if device.startswith(backend.devices)), None)


def cards_by_backend(installation: Installation) -> dict[Backend, dict[int, str]]:
    """The names of the GPUs that a program lists, by their numbers; of each backend with rules, the fastest first."""
    listed: dict[Backend, dict[int, str]] = {}
    for backend in _BACKENDS:
        names = {
            int(re.sub(r"\D", "", name) or 0): description
            for name, _, description in (device.partition(": ") for device in installation.devices)
            if name.startswith(backend.devices)
        }
        if names and backend.rules is not None:
            listed[backend.rules] = names
    return listed


def name_of(backend: Backend) -> str:
    """The backend as programs name it: "ROCm" for hip."""
    return next((item.name for item in _BACKENDS if item.rules is backend), backend.value)


def _rank(devices: Iterable[str]) -> int:
    """The place of the fastest backend of these devices in the table."""
    used = {_backend_of(device) for device in devices}
    return next((i for i, backend in enumerate(_BACKENDS) if backend in used), len(_BACKENDS))


def _folders_of(program: Path) -> tuple[Path, ...]:
    """Where a program's libraries may be."""
    with suppress(OSError):
        program = program.resolve()
    folder = program.parent
    return (folder, folder.parent / "lib", folder.parent / "libexec")


def _backends(devices: Iterable[str], folders: Iterable[Path], log: str = "") -> tuple[str, ...]:
    """What a build computes with, from its devices, its libraries and its log. The CPU last: every build can."""
    used = {backend.name for device in devices if (backend := _backend_of(device)) is not None}
    used |= set(_NO_CUDA.findall(log))
    for folder in folders:
        with suppress(OSError):
            for path in islice(folder.glob("*ggml-*"), _MAX_LIBRARIES):
                if match := _LIBRARY.fullmatch(path.name):
                    used |= {item.name for item in _BACKENDS if item.library == match[1]}
    return (*(backend.name for backend in _BACKENDS if backend.name in used), _CPU)


def _wheel(timeout_s: float) -> Iterator[Installation]:
    """The wheel, asked in a child process: importing it may crash."""
    if not has_xllamacpp():
        return
    version = xllamacpp_version()
    spec = find_spec(XLLAMACPP_NAME)
    library, devices, problem, timed_out = _ask_wheel(timeout_s)
    yield Installation(
        program=XLLAMACPP_NAME,
        origin="Python package",
        path="" if spec is None or spec.origin is None else str(Path(spec.origin).parent),
        version=version,
        build=f"llama.cpp {library}" if library else "",
        backends=_backends(devices, ()),
        devices=devices,
        rules_version=version_name(*wheel_version(version)),
        problem=problem,
        timed_out=timed_out,
    )


def _ask_wheel(timeout_s: float) -> tuple[str, tuple[str, ...], str, bool]:
    """The version of the wheel's llama.cpp, its GPUs, why they are unknown, and whether it only took too long."""
    log: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        child = start_child(
            "devices",
            {"timeout_s": timeout_s},
            environment={},
            on_line=log.append,
        )
    except EngineError as error:
        return "", (), str(error), False
    deadline = time.monotonic() + timeout_s
    try:
        message = child.message(timeout_s)
    except EOFError:
        message = {}
        child.wait(max(0.0, deadline - time.monotonic()))
    finally:
        child.close(1.0)
    if message is None:
        return "", (), f"it does not answer within {timeout_s:g} s", True
    if not message:
        return "", (), f"it does not start: {one_line(' '.join(log), _NAME_CHARS)}", False
    devices = tuple(
        f"{name}: {one_line(description, _NAME_CHARS)}"
        for name, description in message["devices"][:_MAX_DEVICES]
        if _backend_of(name) is not None
    )
    return message["version"] or "", devices, "", False


def _ollama(here: Surroundings, timeout_s: float) -> Iterator[Installation]:
    """Ollama's program, of which EdgeKit starts a server of its own, and the server that runs already."""
    found = ollama.find_ollama_program(here, timeout_s=timeout_s)
    if found is None:
        return
    listed = Installation(
        program="ollama",
        origin="running server",
        path="",
        version=found.version,
        backends=_backends((), found.library_folders) if found.library_folders else (),
        rules_version=_unknown_version(),
    )
    if found.program is not None:
        yield replace(
            listed,
            origin=found.program.origin,
            path=str(found.program.path),
            problem=found.problem,
        )
    if found.server is not None:
        problem = "already running; EdgeKit starts its own server"
        if found.program is None:
            problem = "its program is not on this machine's PATH"
        yield replace(listed, path=found.server.address, problem=problem)


def _lm_studio() -> Iterator[Installation]:
    return lm_studio.installations("llama.cpp", _unknown_version())


def _unknown_version() -> str:
    """The rules for a program that does not say which llama.cpp it has: those of the newest, unless one is named."""
    return version_name(*(named_version() or (NEWEST, None)))
