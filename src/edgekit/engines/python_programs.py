"""Engines that are Python packages: in EdgeKit's own environment, or in that of a script on the PATH."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path

from edgekit.engines.discovery import (
    ask_program,
    find_programs,
    in_parallel,
    in_this_environment,
    is_program,
)
from edgekit.engines.program import Installation
from edgekit.errors import one_line
from edgekit.machine.surroundings import Surroundings, bytes_of
from edgekit.machine.types import System

_FIRST_BYTES = (
    4096  # of a script; the longest path has 4,096 bytes, and then it has no version here
)
_MARK = "edgekit-versions "
_VERSION_CHARS = 40
# Run by another interpreter, which may be older than ours.
_SCRIPT = f"""\
import json, sys
from importlib import metadata
found = {{}}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print({_MARK!r} + json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonProgram:
    """A Python environment with an engine, and the versions of the distributions that were asked for."""

    origin: str
    path: str  # the script, or the folder of the package
    versions: Mapping[str, str]
    problem: str = ""


def python_programs(
    package: str,
    script: str,
    distributions: Sequence[str],
    *,
    here: Surroundings,
    timeout_s: float,
) -> tuple[PythonProgram, ...]:
    """Where an engine is installed: EdgeKit's environment first. The first of `distributions` is the engine."""
    own = in_this_python(package, distributions)
    programs = [] if own is None else [own]
    scripts = [
        found for found in find_programs(script, here) if not in_this_environment(found.path)
    ]
    answers = in_parallel(
        lambda found: _ask_environment(found.path, distributions, here, timeout_s), scripts
    )
    for found, (versions, problem) in zip(scripts, answers, strict=True):
        programs.append(
            PythonProgram(
                origin=found.origin, path=str(found.path), versions=versions, problem=problem
            )
        )
    return tuple(programs)


def in_this_python(package: str, distributions: Sequence[str]) -> PythonProgram | None:
    """The engine in EdgeKit's own environment; None if it is not there."""
    spec, versions = find_spec(package), _own_versions(distributions)
    if spec is None or distributions[0] not in versions:
        return None
    folder = next(iter(spec.submodule_search_locations or ()), spec.origin or "")
    return PythonProgram(origin="Python package", path=folder, versions=versions)


def package_installation(program: str, package: str, distribution: str) -> Installation | None:
    """The engine in EdgeKit's own environment as an installation; None if it is not there. Nothing is started."""
    found = in_this_python(package, [distribution])
    if found is None:
        return None
    version = found.versions[distribution]
    return Installation(program=program, origin=found.origin, path=found.path, version=version)


def _own_versions(distributions: Sequence[str]) -> dict[str, str]:
    versions = {}
    for name in distributions:
        try:
            versions[name] = version_of(name)
        except PackageNotFoundError:
            continue
    return versions


def _ask_environment(
    script: Path, distributions: Sequence[str], here: Surroundings, timeout_s: float
) -> tuple[dict[str, str], str]:
    """The versions in the environment of a script, and why they are unknown."""
    interpreter = interpreter_of(script, here)
    if interpreter is None:
        return {}, "not a script of a Python environment"
    words = [str(interpreter), "-I", "-c", _SCRIPT, *distributions]
    output = ask_program(words, timeout_s=timeout_s)
    if output.problem:
        return {}, f"could not query its Python ({interpreter}): {output.problem}"
    line = next((line for line in output.text.splitlines() if line.startswith(_MARK)), "")
    try:
        found = json.loads(line.removeprefix(_MARK))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return {}, f"its Python ({interpreter}) reports no versions"
    versions = {
        name: one_line(str(found[name]), _VERSION_CHARS) for name in distributions if name in found
    }
    if distributions[0] not in versions:
        return versions, f"its Python ({interpreter}) has no {distributions[0]}"
    return versions, ""


def interpreter_of(script: Path, here: Surroundings) -> Path | None:
    """The Python that runs a script: named in its first lines, on Windows next to it; None if there is none."""
    if here.system is System.WINDOWS:  # a launcher in the Scripts folder of the environment
        for candidate in (script.parent / "python.exe", script.parent.parent / "python.exe"):
            if is_program(candidate):
                return candidate
        return None
    lines = (bytes_of(script, _FIRST_BYTES) or b"").decode(errors="replace").splitlines()
    words = _words(lines[0].removeprefix("#!")) if lines and lines[0].startswith("#!") else []
    if words and Path(words[0]).name == "sh" and len(lines) > 1:
        # pip's form for a path that is too long or has blanks: '''exec' "/a path/python" "$0" "$@"
        words = _words(lines[1].removeprefix("'''exec'"))
    if words and Path(words[0]).name == "env":
        names = [word for word in words[1:] if not word.startswith("-")]
        found = find_programs(names[0], here) if names and "/" not in names[0] else ()
        path = found[0].path if found else None
    else:
        path = Path(words[0]) if words else None
    if path is None or not re.match(r"python|pypy", path.name) or not is_program(path):
        return None
    return path if path.is_absolute() else None


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote that is not closed
        return line.split()
