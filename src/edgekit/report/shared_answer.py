"""What a shared answer shows: the model, the machine, a verdict, one sentence, four figures and the memories.

The picture, the badge and the HTML file show the same values, so that they cannot disagree.
"""

from __future__ import annotations

import datetime as dt
import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgekit.app.check import Check
from edgekit.bill.types import Verdict
from edgekit.engines import engine_named
from edgekit.engines.choices import AS_NAMED
from edgekit.errors import NotFoundError, printable
from edgekit.index.names import find_entry
from edgekit.index.titles import publisher_of
from edgekit.index.titles import title_of as index_title
from edgekit.index.types import Entry
from edgekit.machine.types import Machine, together_bytes
from edgekit.plan.choice import download_bytes, runs_on
from edgekit.report.check import (
    embeds,
    headline,
    is_beyond,
    rounded_context_words,
    takes_a_share,
)
from edgekit.report.machine_label import counted_devices, machine_label
from edgekit.report.speed import interval_words
from edgekit.report.text import PARTS, RAM, UNIFIED, Memory, fullest, memories, sizes_words
from edgekit.sources.filenames import MODEL_SUFFIXES
from edgekit.units import GIB, MIB, format_download, rate_figure

# Names of the parts of a memory; the keys are report.text's PARTS.
PART_NAMES: Mapping[str, str] = dict(
    zip(PARTS, ("weights", "KV cache", "compute", "other"), strict=True)
)
MOST_BARS = 3
NOT_KNOWN = "?"
# A path below a folder: /home/me/x.gguf, ~/x.gguf, C:\\models\\x.gguf, file:///x. Not org/name, tokens/s or an address.
_FOLDERS = re.compile(
    r"(?:file:/*|(?<![\w/:.~-]))(?:~[\w.-]*|\.{1,2})?/(?:[^\s/'\"<>|:;,()]+/)*"
    r"|(?<!\w)(?:[A-Za-z]:[\\/]|\\\\)(?:[^\\/'\"<>|:\n]+[\\/])*"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "June", "July", "Aug", "Sept", "Oct", "Nov", "Dec")


class Tone(enum.Enum):
    """The colour and the icon of a verdict."""

    GOOD = "good"
    TIGHT = "tight"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One large figure: '≈ 42' 'tokens/s', 'range 34-52'."""

    label: str
    value: str
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """One memory: its bar has a mark at the end of the usable part."""

    name: str
    required_bytes: int
    usable_bytes: int
    whole_bytes: int
    parts: tuple[tuple[str, int], ...]  # names of PART_NAMES and bytes, without empty ones

    @property
    def sizes(self) -> str:
        """'21.5 of 22.5 GiB'."""
        return sizes_words(self.required_bytes, self.usable_bytes)

    @property
    def is_too_small(self) -> bool:
        return self.required_bytes > self.usable_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAnswer:
    title: str
    publisher: str  # empty: unknown
    quantization: str  # empty: as stored
    machine: str  # "RTX 4090 · 24 GB · 64 GB RAM"
    hardware: str  # "RTX 4090": the machine in one or two words
    tone: Tone
    verdict: str  # "Runs on GPU"
    short_verdict: str  # "fits"
    sentence: str
    figures: tuple[Figure, ...]
    memories: tuple[SharedMemory, ...]
    engine: str  # with its version
    date: dt.date

    @property
    def date_words(self) -> str:
        """'31 July 2026', whatever the locale."""
        return f"{self.date.day} {_MONTHS[self.date.month - 1]} {self.date.year}"

    @property
    def details(self) -> str:
        """'Google · Q4_K_M'."""
        return " · ".join(filter(None, (self.publisher, self.quantization)))

    @property
    def description(self) -> str:
        """The whole picture in words, for screen readers."""
        model = " ".join(filter(None, (self.title, self.quantization)))
        return f"{model} on {self.machine}: {self.sentence}. {self.engine}, {self.date_words}."


def today() -> dt.date:
    """The date here."""
    return dt.datetime.now(tz=dt.UTC).astimezone().date()


def shared_answer(check: Check, date: dt.date) -> SharedAnswer:
    result = check.result
    entry = entry_of(check)
    tone, verdict, short_verdict = _verdict(result)
    return SharedAnswer(
        title=title_of(check, entry),
        publisher=_publisher(check, entry),
        quantization=_quantization(result),
        machine=machine_label(result.machine),
        hardware=_hardware(result.machine),
        tone=tone,
        verdict=verdict,
        short_verdict=short_verdict,
        sentence=without_folders(headline(result, from_name=check.is_assumed)),
        figures=tuple(_missing_memory(check) if result.failed else _figures(check)),
        memories=_memories(result),
        engine=_engine(check),
        date=date,
    )


def _engine(check: Check) -> str:
    """'vLLM 0.32.0': the engine's title and version."""
    name, text = check.result.engine, check.bill.engine_title
    if text.startswith(f"{name} "):
        text = f"{engine_named(name).title}{text.removeprefix(name)}"
    return printable(text)


def without_folders(text: str, folders: Sequence[str] = ()) -> str:
    """The text with only the names of local files, without their folders.

    `folders` are removed too where the text does not show that they are folders: models/private.
    """
    for folder in sorted(folders, key=len, reverse=True):
        if folder.strip("./\\~"):
            text = re.sub(rf"(?<![\w/.-])(?:\./)?{re.escape(folder)}[/\\]", "", text)
    return _FOLDERS.sub("", text)


# -- the model ------------------------------------------------------------------------------------


def entry_of(check: Check) -> Entry | None:
    """The model in the index; None for a local file, whose name may be that of another model."""
    label = check.bill.label
    if not (check.is_remote or check.bill.from_index):
        return None
    try:
        return find_entry(label)
    except NotFoundError:
        return None


def title_of(check: Check, entry: Entry | None) -> str:
    """The name of the model as people write it, else the file's or the repository's."""
    if entry is not None:
        return printable(index_title(entry))
    name = check.bill.label.removeprefix("sample:").replace("\\", "/").rpartition("/")[2]
    name = name.partition(":")[0] or name
    for suffix in MODEL_SUFFIXES:
        name = name.removesuffix(suffix)
    quantization = _quantization(check.result)  # is shown next to the title
    if quantization and name.upper().endswith((f".{quantization}", f"-{quantization}")):
        name = name[: -len(quantization) - 1]
    return printable(name or check.bill.label)


def _publisher(check: Check, entry: Entry | None) -> str:
    """The publisher of the model; for an unknown repository, its owner."""
    publisher = None if entry is None else publisher_of(entry)
    if publisher is not None:
        return printable(publisher)
    owner, slash, _ = check.bill.label.partition("/")
    return printable(owner) if slash and check.is_remote and "." not in owner else ""


def _quantization(result: Verdict) -> str:
    name = result.quantization.removeprefix(AS_NAMED).removesuffix("_MOE")
    return printable(name.replace(" bit", "-bit"))


# -- the machine ----------------------------------------------------------------------------------


def _hardware(machine: Machine) -> str:
    """'2x RTX 3090', 'M3 Max 64GB', 'Ryzen 7 7700': what a badge says of the machine."""
    names = " + ".join(name for name, _ in counted_devices(machine.devices))
    return printable(names or machine_label(machine).partition(" · ")[0])


# -- the verdict ----------------------------------------------------------------------------------


def _verdict(result: Verdict) -> tuple[Tone, str, str]:
    """The tone, the words, and the words of a badge."""
    starts = takes_a_share(result)
    if result.failed:
        words = "Does not start" if starts else "Does not fit"
        return Tone.BAD, words, words.lower()
    where = runs_on(result)
    if result.is_too_slow:
        return Tone.TIGHT, f"Too slow on {where}", "too slow"
    if result.warning:
        return Tone.TIGHT, f"Tight on {where}", "tight"
    return Tone.GOOD, f"{'Starts' if starts else 'Runs'} on {where}", "starts" if starts else "fits"


# -- the figures ----------------------------------------------------------------------------------


def _figures(check: Check) -> Iterator[Figure]:
    result = check.result
    yield _speed(result)
    all_memories = memories(result)
    cards = [memory for memory in all_memories if not memory.is_ram]
    memory = fullest(cards if cards and result.way.cards else all_memories)
    name = memory.name if memory.name in {RAM, UNIFIED} else "GPU memory"
    used, unit = _size(memory.required_bytes)
    usable = " ".join(_size(memory.usable_bytes))
    yield Figure(
        label=name[0].upper() + name[1:], value=used, unit=unit, note=f"of {usable} usable"
    )
    longest = result.context_tokens if is_beyond(result) else result.max_context
    per_user = " per user" if result.streams > 1 else ""
    yield Figure(
        label=f"Max context{per_user}",
        value=_tokens(longest // result.streams),
        unit="tokens",
        note=f"checked at {_tokens(result.context_tokens // result.streams)}",
    )
    yield _download(check)


def _missing_memory(check: Check) -> Iterator[Figure]:
    """The figures of a model that does not fit."""
    result = check.result
    all_memories = memories(result)
    required = sum(memory.required_bytes for memory in all_memories)
    usable = together_bytes(use.budget for use in result.uses)
    where = "in all memories"
    if len(all_memories) == 1 or required <= usable:
        memory = fullest(all_memories)
        required, usable = memory.required_bytes, memory.usable_bytes
        where = f"on {memory.name}" if memory.name not in {RAM, UNIFIED} else f"of {memory.name}"
    tokens = _tokens(result.context_tokens // result.streams)
    value, unit = _size(required)
    yield Figure(label="Needs", value=value, unit=unit, note=f"at {tokens} tokens")
    value, unit = _size(usable)
    yield Figure(label="Usable", value=value, unit=unit, note=where)
    if required > usable:
        value, unit = _size(required - usable)
        times = f"needs {required / usable:.1f}x as much" if usable else ""
        yield Figure(label="Missing", value=value, unit=unit, note=times)
    else:
        longest = result.max_context // result.streams
        value = _tokens(longest) if longest else "none"
        yield Figure(label="Max context", value=value, unit="tokens" if longest else "")
    yield _download(check)


def _speed(result: Verdict) -> Figure:
    """Of decoding; of reading for an embedding model."""
    speed = result.speed
    rates = None if speed is None else speed.prefill if embeds(result) else speed.decode
    typical = result.typical_speed
    label = "Reading speed" if embeds(result) else "Speed"
    if rates is None or typical is None:
        return Figure(label=label, value=NOT_KNOWN, unit="tokens/s", note="not known")
    interval = interval_words(rates).replace("-", "\N{EN DASH}")
    one_user = (
        "one user at a time" if result.streams > 1 or (result.load.sequences or 1) > 1 else ""
    )
    one_user = one_user if takes_a_share(result) or result.streams > 1 else ""
    figure = f"{typical / 1000:,.0f}K" if typical >= 10_000 else rate_figure(typical)
    value = "< 0.1" if figure.startswith("less") else f"\N{ALMOST EQUAL TO} {figure}"
    note = ", ".join(filter(None, (interval and f"range {interval}", one_user)))
    return Figure(label=label, value=value, unit="tokens/s", note=note)


def _download(check: Check) -> Figure:
    """The download; of a local file the size of its weights."""
    result = check.result
    size_bytes = download_bytes(result) if check.is_remote else result.estimate.weights_bytes
    label = "Download" if check.is_remote else "Weights"
    if not size_bytes:
        return Figure(label=label, value=NOT_KNOWN, unit="GB", note="not known")
    value, unit = format_download(size_bytes).split(" ")
    return Figure(label=label, value=value, unit=unit, note=_quantization(result))


def _size(size_bytes: int) -> tuple[str, str]:
    """('21.5', 'GiB')."""
    step, unit = (GIB, "GiB") if size_bytes >= GIB else (MIB, "MiB")
    return (f"{size_bytes / step:,.{0 if unit == 'MiB' else 1}f}", unit)


def _tokens(tokens: int) -> str:
    """'46K', '512'."""
    return rounded_context_words(tokens).removesuffix(" tokens")


# -- the memories ---------------------------------------------------------------------------------


def _memories(result: Verdict) -> tuple[SharedMemory, ...]:
    """At most MOST_BARS: several cards with the same name are shown as the fullest of them."""
    all_memories = memories(result)
    if len(all_memories) > MOST_BARS:
        groups: dict[str, list[Memory]] = {}
        for memory in all_memories:
            groups.setdefault(memory.use.budget.name, []).append(memory)
        shown = []
        for name, group in groups.items():
            decides = fullest(group)
            many = f"fullest of {len(group)} {name}" if len(group) > 1 else decides.name
            shown.append(_shared_memory(decides, many))
        cards, ram = shown[:-1], shown[-1:]
        return (*cards[: MOST_BARS - 1], *ram)
    return tuple(_shared_memory(memory, memory.name) for memory in all_memories)


def _shared_memory(memory: Memory, name: str) -> SharedMemory:
    parts = tuple((PART_NAMES[part], size) for part, size in memory.parts.items() if size)
    return SharedMemory(
        name=printable(name),
        required_bytes=memory.required_bytes,
        usable_bytes=memory.usable_bytes,
        whole_bytes=memory.whole_bytes,
        parts=parts,
    )
