"""llama.cpp versions: names, the rules that each follows, and the default.

llama.cpp numbers builds by commit (b9294) and, since August 2026, versions (0.1.0, 0.2.0 ...). Wheels of xllamacpp are
named by month and build: 2026.5.9294.
"""

from __future__ import annotations

import enum
import os
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from edgekit.errors import UsageError

VARIABLE = "EDGEKIT_LLAMA_VERSION"
WHEEL = "xllamacpp"  # the llama.cpp that `edgekit run` starts


class Rules(enum.IntEnum):
    """Builds that changed the bill: `rules >= Rules.F16_MASK`. If only the builds before and after a change were read,
    those in between follow the rule that needs more memory.
    """

    ROTATION_PER_CACHE = 8699  # llama-kv-cache.cpp @ 4eb1951: heads of quantised caches may differ
    PER_LAYER_FIRST = 8711  # gemma3n-iswa.cpp @ 5764d7c: inputs of all layers are looked up first
    EXPERTS_FIRST = 8738  # llama-graph.cpp @ d6f3030: experts are added up before a shared one runs
    ROTATION_OF_VIEWS = 9027  # llama-graph.cpp @ fa59546: fused matrices do not abort with q8_0
    F16_MASK = 9410  # llama-graph.cpp @ 031ddb2: flash attention has an f16 mask from the start
    SLICED_QUANTISED = 9455  # llama-context.cpp @ 8e6fff8: -sm tensor with quantised caches
    ROW_PER_SEQUENCE = 9460  # server-context.cpp @ de6f727: not a row of logits for every token
    WITHOUT_ROWS = 9890  # ggml-cuda.cu @ 74976e1: no -sm row
    ROPE_OFFSET = 10568  # minicpm3.cpp, deepseek2.cpp @ 873e5d8: queries are not cut to be rotated
    RPC_PIPELINED = 10587  # ggml-rpc.cpp: devices of servers work on several micro-batches in turn
    FLAT_MAMBA2 = 10809  # mamba-base.cpp: all sequences are projected as one matrix
    V0_5 = 11064  # 0c1e570: its allocations are recorded
    V0_6 = 11065  # tokens and embeddings may share a batch; states are read all at once


OLDEST = 8608  # the first build of April 2026
NEWEST = 11549  # the newest build that the rules were checked against
_CHECKED = {Rules.V0_5.value: "0.5.0-dev (0c1e570)", NEWEST: "0.6.0-dev (b11549)"}
# The last wheel of each month.
_MONTHS = {
    (2026, 4): 8929,
    (2026, 5): 9294,
    (2026, 6): 9713,
    (2026, 7): 10068,
    (2026, 8): 10566,
    (2026, 9): 11063,
    (2026, 10): NEWEST,
}
_NEWEST_NUMBER = (6, 0)  # 0.6.0
_BEFORE_0_4_1, _0_4_1 = 10809, 11063  # which call themselves 0.4.0-dev and 0.4.1-dev
_LEAST_BUILD = 1000  # a source archive reports build 0 or 1

_BUILD = re.compile(r"(?:b(?=\d)|(?=\d{4}))(\d{1,6})(?: \([0-9a-f]+\))?")
_WHEEL = re.compile(
    r"(20\d\d)\.(\d{1,2})(?:\.(\d+))?(?:\.\d+)?(?:\.?(?:post|dev|rc)\d+)?(?:\+\S+)?"
)
_NUMBER = re.compile(
    r"v?0\.(\d{1,3})(?:\.(\d{1,3}))?(?:-dev)?(?: \((?:build (\d+), commit )?\w+\))?"
)


class LlamaVersion(NamedTuple):
    """One version, as fields of LlamaCppSetup."""

    rules: int  # a build: this version, or one with the same bill
    version: str | None = None  # its name, if the rules were checked against another


def read_version(text: str) -> LlamaVersion:
    """b9294, 0.5, 0.6.0-dev, 2026.9, 2026.10.11549, or what `llama-server --version` prints.

    UsageError for other text, and for versions before April 2026.
    """
    lines = text.strip().splitlines() or [""]
    name = lines[0].removeprefix("version:").strip().lower()
    if found := _BUILD.fullmatch(name):
        return _of_build(int(found[1]))
    if found := _WHEEL.fullmatch(name):
        return _of_wheel(int(found[1]), int(found[2]), found[3])
    if found := _NUMBER.fullmatch(name):
        if found[3] and int(found[3]) >= _LEAST_BUILD:
            return _of_build(int(found[3]))
        return _of_number(int(found[1]), int(found[2] or 0))
    raise UsageError(
        f"{name[:40]!r} is not a llama.cpp version: write for example b{NEWEST}, 0.6 or 2026.10"
    )


def _of_build(build: int) -> LlamaVersion:
    if build < OLDEST:
        raise UsageError(
            f"llama.cpp b{build} is too old: edgekit supports b{OLDEST} (April 2026) and newer"
        )
    if build in (Rules.V0_5, Rules.V0_6):  # numbers for versions whose build is not known
        build = Rules.V0_6
    return LlamaVersion(min(build, NEWEST), None if build == NEWEST else f"b{build}")


def _of_wheel(year: int, month: int, build: str | None) -> LlamaVersion:
    if build is not None and int(build) >= _LEAST_BUILD:
        return _of_build(int(build))
    if not 1 <= month <= 12:
        raise UsageError(f"{year}.{month} is not a llama.cpp version: a month is 1 to 12")
    if (year, month) > max(_MONTHS):
        return LlamaVersion(NEWEST, f"{year}.{month}")
    if (year, month) not in _MONTHS:
        raise UsageError(
            f"llama.cpp of {year}.{month} is too old: edgekit supports April 2026 and newer"
        )
    return _of_build(_MONTHS[year, month])


def _of_number(minor: int, patch: int) -> LlamaVersion:
    name = f"0.{minor}.{patch}"
    if minor >= 6:
        return LlamaVersion(NEWEST, name if (minor, patch) > _NEWEST_NUMBER else None)
    if minor == 5:
        return LlamaVersion(Rules.V0_5)
    return LlamaVersion(_BEFORE_0_4_1 if (minor, patch) < (4, 1) else _0_4_1, name)


def is_newer(version: str | None) -> bool:
    """True if a version is newer than the newest one that the rules were checked against."""
    if version is None:
        return False
    if version.startswith("b"):
        return int(version[1:]) > NEWEST
    return read_version(version).rules == NEWEST


def version_name(rules: int, version: str | None) -> str:
    """A version's name in reports: its own, or that of the version its rules were checked against."""
    if version is not None and read_version(version).rules == rules:
        return version
    return _CHECKED.get(rules, f"b{rules}")


def answered_version(text: str) -> LlamaVersion:
    """The version in an engine's reply: `2026.10.11549 (llama.cpp 0.6.0-dev)`. The newest if it names none.

    Bindings with their own numbering are identified by the library's version: `0.2.13 (llama.cpp 0.6.0-dev)`.
    """
    binding, _, library = text.partition(" (llama.cpp ")
    for name in (binding, library.removesuffix(")")):
        if name and not (library and binding is name and name.startswith("0.")):
            with suppress(UsageError):
                return read_version(name)
    return LlamaVersion(NEWEST)


def wheel_version(text: str) -> LlamaVersion:
    """The llama.cpp in a wheel of xllamacpp. Wheels before 2026.4 (0.2.14) count as the oldest known build."""
    try:
        return LlamaVersion(OLDEST) if text.startswith("0.") else read_version(text)
    except UsageError:
        return LlamaVersion(OLDEST)


def default_version() -> LlamaVersion:
    """EDGEKIT_LLAMA_VERSION, else the llama.cpp that `edgekit run` would start, else the newest known."""
    named = os.environ.get(VARIABLE)
    if not named:
        return installed_version() or LlamaVersion(NEWEST)
    try:
        return read_version(named)
    except UsageError as error:
        raise UsageError(f"{VARIABLE}: {error}") from None


@cache
def installed_version() -> LlamaVersion | None:
    """The installed wheel's version, from the name of its metadata folder: importlib.metadata is slower than a whole
    bill.
    """
    pattern = re.compile(rf"{WHEEL}-(.+)\.dist-info")
    for folder in sys.path:
        with suppress(OSError):
            for path in Path(folder).iterdir():
                if found := pattern.fullmatch(path.name):
                    return wheel_version(found[1])
    return None
