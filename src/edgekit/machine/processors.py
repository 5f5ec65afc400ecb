"""What is known about processors: cores, memory channels, official memory speeds and instruction sets.

The table is device_data/processors.tsv, maintained by hand: to add a processor, add a row. `channels` counts channels
of 64 bits per socket, `memory` has the fastest official speed of each kind, `source` is where the maker publishes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from edgekit.errors import UsageError
from edgekit.machine.devices import MAX_NAME_CHARS, device_like, table_lines, words_of
from edgekit.machine.types import HostMemory
from edgekit.sources.filenames import close_names
from edgekit.units import Basis, parse_size

FILE = "processors.tsv"
COLUMNS = (
    "name", "maker", "performance_cores", "efficiency_cores", "channels", "memory", "bandwidth_gb_s", "instructions",
    "base_ghz", "boost_ghz", "released", "also", "source",
)  # fmt: skip
SHOWN = 6  # names in one message
_BYTES_PER_TRANSFER = 8  # of a channel of 64 bits
DESKTOP_CHANNELS = 2
DESKTOP_MODULES = 4  # up to here, assume a desktop: two modules on each of two channels


class MemorySpeed(NamedTuple):
    """A kind of memory and its speed: DDR5-5600."""

    kind: str  # "DDR5"
    mt_per_s: int

    @property
    def text(self) -> str:
        return f"{self.kind}-{self.mt_per_s}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProcessor:
    """One processor, or several that differ only in their names and clocks."""

    name: str  # "Ryzen 7 7700"
    maker: str
    performance_cores: int  # including all cores of a processor with one kind of core
    efficiency_cores: int
    channels: float  # of 64 bits; half of one on small boards
    memory: tuple[MemorySpeed, ...]
    fixed_bandwidth_bytes_per_s: (
        int | None
    )  # official, of soldered memory or if lower than that of all channels
    instructions: frozenset[
        str
    ]  # "avx2", "avx512_vnni", "dotprod": what kernels for quantised weights use
    base_ghz: float | None
    boost_ghz: float | None  # of the fastest core
    released: str  # "2023-01"
    also: tuple[str, ...]
    source: str

    @property
    def cores(self) -> int:
        return self.performance_cores + self.efficiency_cores

    @property
    def most_channels(self) -> float:
        """Channels of a whole machine; server processors may come in pairs."""
        return self.channels * (2 if self.name.startswith(("EPYC", "Xeon")) else 1)

    @property
    def arm(self) -> bool:
        return "neon" in self.instructions

    @property
    def fastest(self) -> MemorySpeed:
        return max(self.memory, key=lambda memory: memory.mt_per_s)

    def accepts(self, kind: str) -> tuple[MemorySpeed, ...]:
        """The official speeds of this kind of memory: LPDDR5X counts as LPDDR5."""
        return tuple(memory for memory in self.memory if _family(memory.kind) == _family(kind))


# -- look-up by name -----------------------------------------------------------------------------

# What systems add to a name: "12th Gen Intel(R) Core(TM) i7-12700K", "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz",
# "AMD Ryzen 7 5700G with Radeon Graphics", "AMD FX(tm)-8350 Eight-Core Processor", "Raspberry Pi 5 Model B Rev 1.0".
_ADDED = re.compile(
    r"@.*|\s(?:with|w/)\s.*|\brev\s[0-9.]+|\b[0-9]{1,2}th gen\b|\b(?:[0-9]{1,3}|[a-z]{3,6})-cores?\b"
    r"|\b(?:cpu|processor|qualcomm|aws)\b",
    re.IGNORECASE,
)
_SEVERAL = re.compile(r"^\s*[0-9]+\s*x\s|,.*[0-9]", re.IGNORECASE)  # "2x EPYC 9654"
_WITH_GRAPHICS = re.compile(r"(?<=[0-9]{4})g(?![a-z0-9])", re.IGNORECASE)
_SNAPDRAGON_X = re.compile(r"\bx1[ep]?-?[0-9][0-9-]{4,}", re.IGNORECASE)
# The part of a name that people leave out: "7700" for "Ryzen 7 7700", "6230" for "Xeon Gold 6230".
_SERIES = re.compile(
    r"(?:core )?(?:i[3579]-|ultra [579] |[357] (?=[0-9]))|core |ryzen threadripper (?:pro )?"
    r"|ryzen (?:[3579] (?:pro )?|ai (?:max\+? |[579] (?:hx )?))|ryzen |xeon (?:silver |gold |platinum )?|epyc "
    r"|(?:processor|celeron|pentium silver|steam|ampere|radxa) ",
    re.IGNORECASE,
)


def find_processor(text: str) -> KnownProcessor:
    """The processor that `text` names: 'Ryzen 7 7700', 'i7-12700K', '9654', 'RK3588'.

    Raises UsageError with similar names for an unknown processor, and for a name that several have.
    """
    if _SEVERAL.search(text[:MAX_NAME_CHARS]):
        raise UsageError(
            f"{text[:40]!r}: name one processor; for two sockets give --ram the channels of both, "
            "for example 512G DDR5-4800 24 channels"
        )
    matches = _processors_named(text)
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(processor.name for processor in matches[:SHOWN])
        raise UsageError(f"{text[:40]!r} may be one of several processors: {names}")
    device = device_like(text[:MAX_NAME_CHARS]) if text.strip() else None
    if device is not None:
        raise UsageError(f"{text[:40]!r} is not a processor: give --device {device.id}")
    raise UsageError(f"unknown processor {text[:40]!r}; {_suggestion(text)}")


def processor_like(name: str) -> KnownProcessor | None:
    """The row for a processor by the name that the system gives it; None if there is none, or several."""
    matches = _processors_named(name)
    return matches[0] if len(matches) == 1 else None


@lru_cache(maxsize=64)
def _processors_named(text: str) -> tuple[KnownProcessor, ...]:
    """The processors with this name. A name matches if it has no word that the row lacks, and at least the row's model
    number. Letters that do not matter here are ignored: F (no graphics), T (low power) and PRO.
    """
    plain = text[:MAX_NAME_CHARS]
    part = _SNAPDRAGON_X.search(plain)
    plain = part[0] if part else _ADDED.sub(" ", plain)
    words = _words(plain)
    if not words:
        return ()
    without = frozenset({"kf": "k"}.get(word, word) for word in words) - {"f", "t", "pro"}
    return _matches(words) or (_matches(without) if without and without != words else ())


def _words(name: str) -> frozenset[str]:
    """The words of a name. The G of a 5700G is not a unit, as it would be in a device's name."""
    return frozenset(words_of(_WITH_GRAPHICS.sub("-g ", name)))


def _matches(words: frozenset[str]) -> tuple[KnownProcessor, ...]:
    exact, partial = [], []
    for line in table_lines(FILE):
        folded = line.lower()
        if not all(word in folded for word in words):
            continue
        processor = _processor(line)
        for name in (processor.name, *processor.also):
            all_words = _words(name)
            if words == all_words:
                exact.append(processor)
                break
            model = _SERIES.match(name)
            least = _words(name[model.end() :]) if model else all_words
            if least and least <= words <= all_words:
                partial.append(processor)
                break
    return tuple(exact or partial)


def _suggestion(text: str) -> str:
    """Processors with a similar name."""
    mentioned = _words(_ADDED.sub(" ", text[:MAX_NAME_CHARS]))
    ranks = []
    names = [line.partition("\t")[0] for line in table_lines(FILE)]
    for name in names:
        words = _words(name)
        shared = sum(len(word) for word in mentioned & words if len(word) > 2)
        if shared:
            ranks.append((shared, -len(mentioned ^ words), name))
    similar = [name for *_, name in sorted(ranks, reverse=True)]
    if not similar:
        digits = [word for word in mentioned if len(word) > 2]
        nearby = [name for name in names if any(word[:2] in name.lower() for word in digits)]
        similar = list(close_names(text[:MAX_NAME_CHARS], nearby))
    if not similar:
        return 'for example "Ryzen 7 7700", i7-12700K, "EPYC 9654", "Xeon Gold 6230", RK3588'
    return f"did you mean {', '.join(similar[:SHOWN])}?"


@lru_cache(maxsize=256)
def _processor(line: str) -> KnownProcessor:
    row = dict(zip(COLUMNS, line.split("\t"), strict=True))
    speeds = (memory.rpartition("-") for memory in row["memory"].split(";"))
    bandwidth = row["bandwidth_gb_s"]
    return KnownProcessor(
        name=row["name"],
        maker=row["maker"],
        performance_cores=int(row["performance_cores"]),
        efficiency_cores=int(row["efficiency_cores"]),
        channels=float(row["channels"]),
        memory=tuple(MemorySpeed(kind, int(speed)) for kind, _, speed in speeds),
        fixed_bandwidth_bytes_per_s=round(float(bandwidth) * 10**9) if bandwidth else None,
        instructions=frozenset(row["instructions"].split()),
        base_ghz=float(row["base_ghz"]) if row["base_ghz"] else None,
        boost_ghz=float(row["boost_ghz"]) if row["boost_ghz"] else None,
        released=row["released"],
        also=tuple(row["also"].split("; ")) if row["also"] else (),
        source=row["source"],
    )


def all_processors() -> tuple[KnownProcessor, ...]:
    return tuple(_processor(line) for line in table_lines(FILE))


# -- memory --------------------------------------------------------------------------------------

# Speeds that are common today, for a kind without a speed: "32G DDR5".
_USUAL_SPEEDS = {
    "DDR3": 1600, "DDR4": 3200, "DDR5": 5600, "MRDIMM": 8800, "LPDDR3": 1866, "LPDDR4": 3200, "LPDDR4X": 4267,
    "LPDDR5": 6400, "LPDDR5X": 7500,
}  # fmt: skip
_MAX_TEXT_CHARS = 80
_MAX_CHANNELS = 64
MOST_CHANNELS = 24  # two sockets with 12
SPEEDS = range(400, 20_001)  # MT/s: below DDR2's, above the fastest on the market
_CHANNEL_WORDS = {"single": 1, "dual": 2, "quad": 4}
_MEMORY = re.compile(
    r"\s*(?:(?P<modules>[0-9]{1,3})\s*[x×*]\s*)?(?P<size>[0-9][0-9.,_]{0,12}\s*[a-z]{0,3})"  # noqa: RUF001 - typed
    r"(?:[\s,]+(?P<kind>(?:lp)?ddr[0-9]x?|mrdimm))?"
    r"(?:[\s,-]*(?<![0-9a-z.])(?P<speed>[0-9]{3,5})(?:\s*(?:mt/?s|mhz))?(?![0-9a-z]))?"
    r"(?:[\s,]+(?:(?P<channels>[0-9]{1,2})[\s-]*channels?|(?P<word>single|dual|quad)[\s-]*channel))?\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryText:
    """RAM as described: "2x16G DDR5-6000". What was not stated is None or empty."""

    size_bytes: int  # of all modules together
    kind: str = ""  # "DDR5"
    mt_per_s: int | None = None
    modules: int | None = None
    channels: int | None = None

    @property
    def only_size(self) -> bool:
        return not (self.kind or self.mt_per_s or self.channels)


class HostBandwidth(NamedTuple):
    """The bandwidth of RAM, and how it is known."""

    bytes_per_s: int
    because: str  # "2 channels of DDR5-6000, --ram"
    basis: Basis


def memory_of(text: str) -> MemoryText:
    """'32G DDR5-6000', '2x16G DDR5-6000', '64GB DDR4 3200', '96G DDR5-5600 2 channels'. Raises UsageError."""
    match = _MEMORY.fullmatch(text) if len(text) <= _MAX_TEXT_CHARS else None
    if match is None:
        if " " not in text.strip():
            parse_size(text)  # its error says what a size is
        raise UsageError(f"{text[:40]!r} is not RAM such as 32G, 32G DDR5-6000 or 2x16G DDR4-3200")
    kind = (match["kind"] or "").upper()
    if kind and kind not in _USUAL_SPEEDS:
        raise UsageError(f"{text[:40]!r}: unknown kind of memory {kind}; for example 32G DDR5-6000")
    speed = int(match["speed"]) if match["speed"] else None
    if speed is not None and speed not in SPEEDS:
        raise UsageError(
            f"{text[:40]!r}: {speed} MT/s is not a speed of memory; for example 32G DDR5-6000"
        )
    modules = int(match["modules"]) if match["modules"] else None
    channels = int(match["channels"]) if match["channels"] else None
    if match["word"]:
        channels = _CHANNEL_WORDS[match["word"].lower()]
    for noun, count in (("modules", modules), ("channels", channels)):
        if count is not None and not 1 <= count <= _MAX_CHANNELS:
            raise UsageError(f"{text[:40]!r}: the number of {noun} must be 1 to {_MAX_CHANNELS}")
    return MemoryText(
        size_bytes=parse_size(match["size"]) * (modules or 1),
        kind=kind,
        mt_per_s=speed,
        modules=modules,
        channels=channels,
    )


def described_bandwidth(
    memory: MemoryText | None, processor: KnownProcessor | None
) -> HostBandwidth | None:
    """The theoretical bandwidth of the described RAM; None if neither its speed nor the processor is known.

    Raises UsageError for memory that the processor does not take.
    """
    memory = memory or MemoryText(size_bytes=0)
    speeds = () if processor is None else processor.memory
    if processor is not None and memory.kind:
        speeds = processor.accepts(memory.kind)
        if not speeds:
            kinds = " or ".join(dict.fromkeys(known.kind for known in processor.memory))
            raise UsageError(f"--ram: {processor.name} takes {kinds}, not {memory.kind}")
    if processor is not None and processor.fixed_bandwidth_bytes_per_s and not memory.mt_per_s:
        bandwidth = processor.fixed_bandwidth_bytes_per_s
        return HostBandwidth(bandwidth, f"official figure for {processor.name}", Basis.MODELLED)
    assumed = ""
    if memory.mt_per_s is not None:
        speed, text = memory.mt_per_s, f"{memory.kind or 'RAM'}-{memory.mt_per_s}"
        if not memory.kind:
            text = f"RAM at {memory.mt_per_s} MT/s"
    elif processor is not None:
        official = max(speeds, key=lambda known: known.mt_per_s)
        speed, text = official.mt_per_s, official.text
        assumed = f"assumed: the fastest that {processor.name} officially takes"
    elif memory.kind:
        speed = _USUAL_SPEEDS[memory.kind]
        text, assumed = f"{memory.kind}-{speed}", "assumed: a usual speed"
    else:
        return None
    channels, is_known = _channels(memory, processor)
    what = f"{text}, {assumed or '--ram'}"
    found = channels_bandwidth(channels, speed, what, is_known=is_known)
    return found._replace(basis=Basis.ASSUMED) if assumed else found


def channels_bandwidth(
    channels: float, mt_per_s: int, what: str, *, is_known: bool
) -> HostBandwidth:
    """The bandwidth of channels of 64 bits; `what` they carry, in words. `is_known`: their number."""
    noun = "channel" if channels <= 1 else "channels"
    count = f"{channels:g} {noun}" if is_known else f"{channels:g} {noun} (assumed)"
    return HostBandwidth(
        round(channels * mt_per_s * 10**6 * _BYTES_PER_TRANSFER),
        f"{count} of {what}",
        Basis.MODELLED if is_known else Basis.ASSUMED,
    )


def with_bandwidth(host: HostMemory, bandwidth: HostBandwidth) -> HostMemory:
    """The RAM with this bandwidth."""
    return replace(
        host,
        bandwidth_bytes_per_s=bandwidth.bytes_per_s,
        bandwidth_because=bandwidth.because,
        bandwidth_basis=bandwidth.basis,
    )


def _channels(memory: MemoryText, processor: KnownProcessor | None) -> tuple[float, bool]:
    """The number of channels in use, and whether it is known."""
    if memory.channels is not None:
        if processor is not None and memory.channels > processor.most_channels:
            most = f"at most {processor.most_channels:g} memory channels of 64 bits"
            raise UsageError(f"--ram: {processor.name} has {most}, not {memory.channels}")
        return memory.channels, True
    if processor is not None:
        if memory.modules is None or memory.kind.startswith("LP"):  # servers often leave some empty
            is_known = processor.channels <= DESKTOP_CHANNELS or memory.kind.startswith("LP")
            return processor.channels, is_known
        return min(memory.modules, processor.channels), True
    if memory.modules is None:
        return DESKTOP_CHANNELS, False
    if DESKTOP_CHANNELS < memory.modules <= DESKTOP_MODULES:
        return DESKTOP_CHANNELS, False
    return min(memory.modules, MOST_CHANNELS), memory.modules <= MOST_CHANNELS


def _family(kind: str) -> str:
    """LPDDR5X is LPDDR5, and MRDIMM is DDR5."""
    return {"MRDIMM": "DDR5"}.get(kind, kind.removesuffix("X"))
