"""Finding programs on this machine and asking them what they are. A program that was found is not trusted."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from edgekit.errors import one_line
from edgekit.machine.surroundings import Surroundings
from edgekit.machine.types import System

_OUTPUT_BYTES = 64 * 1024  # of each stream; a version has 100 bytes, a log of eight GPUs 4 KiB
_MAX_FOLDERS = 64  # of a PATH
_MAX_PROGRAMS = 8  # of one name
_GONE_S = 0.3  # for a killed program to disappear; one that waits for a broken driver never does
_THREADS = 16
_READ_BYTES = 4096
_PROBLEM_CHARS = 160

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutput:
    """What a program printed. `problem`: why there is no usable answer."""

    text: str = ""
    problem: str = ""


def ask_program(
    words: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None
) -> ProgramOutput:
    """Runs a program and returns what it printed, standard output first. Never raises for what the program does.

    It gets no shell, no terminal and no input, and starts in its own folder, because some programs load libraries from
    the current one. Whatever it started is killed with it.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - no shell
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(words[0]).parent,
            env=None if environment is None else dict(environment),
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return ProgramOutput(problem=f"it does not start: {reason}")
    deadline = time.monotonic() + timeout_s
    pieces: tuple[list[bytes], list[bytes]] = ([], [])
    ends: queue.SimpleQueue[bool] = queue.SimpleQueue()  # of each stream: whether it was too long
    for stream, into in zip((process.stdout, process.stderr), pieces, strict=True):
        threading.Thread(target=_read, args=(stream, into, ends), daemon=True).start()
    try:
        is_flood = any(ends.get(timeout=_left(deadline)) for _ in pieces)
        if not is_flood:  # it may close its output before it ends
            process.wait(_left(deadline))
        problem = f"it prints more than {_OUTPUT_BYTES // 1024} KiB" if is_flood else ""
    except (queue.Empty, subprocess.TimeoutExpired):
        problem = f"it does not answer within {round(timeout_s, 1):g} s"
    if problem:
        _kill(process)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GONE_S)
    text = "\n".join(b"".join(stream).decode(errors="replace") for stream in pieces)
    if not problem and process.returncode:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        code = process.returncode
        problem = f"it ends with {f'exit code {code}' if code > 0 else signal_name(-code)}"
        problem = ": ".join(filter(None, (problem, one_line(last, _PROBLEM_CHARS))))
    return ProgramOutput(text=text, problem=problem)


def signal_name(number: int) -> str:
    """SIGKILL for 9; for an unknown number, the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _read(stream: IO[bytes] | None, into: list[bytes], ends: queue.SimpleQueue[bool]) -> None:
    """Reads a stream to its end or its limit, and reports whether it was too long."""
    length = 0
    if stream is not None:
        with suppress(OSError, ValueError), stream:
            while length <= _OUTPUT_BYTES and (piece := os.read(stream.fileno(), _READ_BYTES)):
                into.append(piece)
                length += len(piece)
    ends.put(length > _OUTPUT_BYTES)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a program that was not waited for, and on POSIX every process of its session."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def in_parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> tuple[Result, ...]:
    """The results, in the order of the items. For functions that wait for programs."""
    waiting = list(items)
    if len(waiting) < 2:
        return tuple(map(function, waiting))
    from concurrent.futures import ThreadPoolExecutor  # not needed to find programs

    with ThreadPoolExecutor(min(len(waiting), _THREADS)) as pool:
        return tuple(pool.map(function, waiting))


# --- folders with programs


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProgram:
    """An executable file, and where it comes from."""

    path: Path
    origin: str  # "PATH", "Homebrew", "winget"


def path_folders(here: Surroundings) -> Iterator[Path]:
    """The folders of PATH. Relative ones are left out: a program in the current folder is not an installation."""
    for text in here.environment.get("PATH", "").split(os.pathsep)[:_MAX_FOLDERS]:
        folder = Path(text)
        if folder.is_absolute():
            yield folder


# Where package managers link programs, on systems where they may be missing in PATH.
_MANAGED = {
    System.MACOS: (
        ("Homebrew", "opt/homebrew/bin"),
        ("Homebrew", "usr/local/bin"),
        ("MacPorts", "opt/local/bin"),
    ),
    System.LINUX: (("Homebrew", "home/linuxbrew/.linuxbrew/bin"),),
}


def find_programs(
    name: str, here: Surroundings, more: Iterable[tuple[str, Path]] = ()
) -> tuple[FoundProgram, ...]:
    """The executables of this name: in PATH, in the folders of package managers, and in `more` (origin, folder).

    Each once, even if several links lead to it.
    """
    file_name = f"{name}.exe" if here.system is System.WINDOWS else name
    folders = [("PATH", folder) for folder in path_folders(here)]
    folders += [(origin, here.root / folder) for origin, folder in _MANAGED.get(here.system, ())]
    programs: dict[Path, FoundProgram] = {}
    for origin, folder in (*folders, *more):
        path = folder / file_name
        if len(programs) < _MAX_PROGRAMS and is_program(path):
            with suppress(OSError):
                programs.setdefault(path.resolve(), FoundProgram(path=path, origin=origin))
    return tuple(programs.values())


def is_program(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except (OSError, ValueError):
        return False


def in_this_environment(path: Path) -> bool:
    """Whether a script belongs to the Python environment that EdgeKit runs in."""
    with suppress(OSError):
        return path.parent.resolve() == Path(sys.executable).parent.resolve()
    return False
