"""A name -> a device that can be bought or rented: its memory and how fast it is read. TABLE in device_data/.

kept.tsv is kept by hand (to add a device: one row), collected.tsv is made by tools/device_table.py. Both are read on
first use, and a row of kept.tsv stands for the one of the same name that was collected.
"""

from __future__ import annotations

import enum
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import NamedTuple

from edgekit.basis import Basis
from edgekit.errors import UsageError
from edgekit.machine.types import Vendor
from edgekit.units import MIB

SHOWN = 6  # names in one message
FILES = ("kept.tsv", "collected.tsv")
COLUMNS = (
    "name", "kind", "vendor", "size_gb", "memory_mib", "usable_mib", "bandwidth_gb_s", "capability",
    "released", "usual", "also", "source",
)  # fmt: skip


APP_LIMITS_FILE = "app_limits.tsv"


class DeviceKind(enum.Enum):
    GPU = "gpu"
    MAC = "mac"
    PHONE = "phone"  # or a tablet
    BOARD = "board"  # Jetson, DGX Spark, Raspberry Pi
    APU = "apu"  # a processor with a large GPU inside


_ARM_KINDS = {DeviceKind.MAC, DeviceKind.PHONE, DeviceKind.BOARD}
_ARM_NAMES = ("GB200", "GB300", "GH200", "Snapdragon")  # beside a Grace; the one APU that is ARM


@dataclass(frozen=True, slots=True, kw_only=True)
class AppLimit:
    """What one app may hold of a phone's RAM before its system kills it."""

    app_bytes: int  # on iOS with the increased-memory-limit entitlement
    plain_bytes: int | None  # on iOS without it; None: not known
    source: str

    @property
    def assumed(self) -> bool:
        return self.source.startswith("assumed")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDevice:
    """One device in one size: a card, or a whole machine with unified memory."""

    name: str  # "RTX 4090", "M3 Max 64GB"
    model: str  # the same in every size: "M3 Max"
    kind: DeviceKind
    vendor: Vendor
    size_gb: int  # as it is sold
    memory_bytes: int  # as its driver reports it
    usable_bytes: int  # what a program can have of it when nothing else runs
    basis: Basis  # of these two
    bandwidth_bytes_per_s: int | None
    capability: tuple[int, int] | None  # CUDA's, from Volta on
    released: str  # "2022-10", "2022"; empty: not known
    usual: bool  # one of those that people buy or rent today
    also: tuple[str, ...]  # what drivers and people call it besides
    source: str
    app_limit: AppLimit | None = None  # of a phone or tablet

    @property
    def id(self) -> str:
        """What to type: 'rtx-4090', 'm3-max-64'."""
        plain = self.name.lower().replace("+", "")
        return "-".join(plain.removesuffix("gb").replace("gb ", " ").split())

    @property
    def unified(self) -> bool:
        """Its memory is that of its processor: one pool for both."""
        return self.kind is not DeviceKind.GPU

    @property
    def arm(self) -> bool:
        """What computes beside it, or in it."""
        return self.kind in _ARM_KINDS or self.name.startswith(_ARM_NAMES)

    @property
    def has_gpu(self) -> bool:
        """One that an engine is modelled on: not a phone's, a Raspberry Pi's, a Snapdragon's."""
        return self.kind is not DeviceKind.PHONE and self.vendor is not Vendor.OTHER


# What is left of the size on the box where no driver's word was found: below every one that was.
# Blackwell cards report 0.995 of it. ROCm takes 16 MiB, 144 of an R9700. SYCL reports 0.944 of an Arc A770. Linux
# reports 0.929 of an Orin Nano and 0.931 of a DGX Spark; a Strix Halo of 128 GB reports 116 GiB and more.
_REPORTED_PERMILLE: dict[Vendor | DeviceKind, int] = {
    Vendor.NVIDIA: 995,
    Vendor.AMD: 990,
    Vendor.INTEL: 940,
    DeviceKind.BOARD: 925,
    DeviceKind.APU: 900,
    DeviceKind.MAC: 1000,  # hw.memsize is the size on the box
    DeviceKind.PHONE: 1000,  # as sold; an app gets less of it (app_limits.tsv)
}
# What firmware keeps of a board does not shrink with it: 585 MiB of an Orin Nano's 8 GiB.
_BOARD_KEEPS_BYTES = 600 * MIB
# NVIDIA's driver keeps some of what nvidia-smi reports: 384 MiB of 4 GiB, 516 of 24, 669 of 45, 886 of 80, 1,109 of 96.
# CUDA's total is the rest. This is more than was found on any of 29 cards; tests hold it against them.
_DRIVER_KEEPS_BYTES = 400 * MIB
_DRIVER_KEEPS_PERMILLE = 7.5


def find_device(text: str) -> KnownDevice:
    """The device that is meant: 'RTX 4090', 'rtx4090', '4090', 'm3-max-64', 'Apple M3 Max 64 GB', 'phone-8'.

    Raises UsageError with names that are near when none is meant, or several of different size.
    """
    wanted = words_of(text)
    index = _index(wanted)
    named = (
        _made(text, index.by_name.get(wanted, ()))
        or _made(text, index.by_other.get(wanted, ()))
        or _in_laptops(index, wanted)
    )
    if not named:
        raise UsageError(f"unknown device {text[:40]!r}; {_near(text, wanted)}")
    if len({device.memory_bytes for device in named}) > 1:
        sizes = sorted(named, key=lambda device: device.memory_bytes)
        names = ", ".join(device.name for device in sizes[:SHOWN])
        raise UsageError(f"{text[:40]!r} comes in several sizes: {names}")
    return min(named, key=lambda device: device.bandwidth_bytes_per_s or 0)


def device_like(name: str, *, memory_bytes: int | None = None) -> KnownDevice | None:
    """What is known of the device that a driver calls so; None where nothing is.

    `memory_bytes`, as the driver reports it, tells the sizes of one name apart. Without it, or where no size is near
    it, the answer is the smallest, with a bandwidth only where all sizes have the same.
    """
    wanted = words_of(name)
    index = _index(wanted)
    known = (*index.by_name.get(wanted, ()), *index.by_other.get(wanted, ()))
    named = _once(_made(name, known))
    if not named:
        return None
    if memory_bytes is not None:
        nearest = min(named, key=lambda device: abs(device.memory_bytes - memory_bytes))
        # ECC switched on or off moves a sixteenth; sizes of one name lie a fifth apart
        if abs(nearest.memory_bytes - memory_bytes) * 10 <= nearest.memory_bytes:
            return nearest
    smallest = min(named, key=lambda device: device.memory_bytes)
    if len({device.bandwidth_bytes_per_s for device in named}) > 1:
        return replace(smallest, bandwidth_bytes_per_s=None)
    return smallest


def usual_devices() -> tuple[KnownDevice, ...]:
    """Those that people buy or rent today, the smallest first."""
    usual = (device for device in all_devices() if device.usual)
    return tuple(sorted(usual, key=lambda device: (device.usable_bytes, device.name)))


def listed_devices() -> tuple[KnownDevice, ...]:
    """All: those that people buy or rent today first, then kind by kind, the smallest first."""
    kinds = list(DeviceKind)
    return tuple(
        sorted(
            all_devices(),
            key=lambda one: (not one.usual, kinds.index(one.kind), one.usable_bytes, one.name),
        )
    )


@cache
def all_devices() -> tuple[KnownDevice, ...]:
    return _devices(())


def _devices(words: Words) -> tuple[KnownDevice, ...]:
    """Those whose rows contain all these words: a row that does not has no such name."""
    parts = [word for word in words if word != "laptop"]  # also written mobile and notebook
    known: set[str] = set()
    found: list[KnownDevice] = []
    for file in FILES:
        for line in _lines(file):
            is_wanted = all(part in line.lower() for part in parts)
            row = dict(zip(COLUMNS, line.split("\t"), strict=True))
            for size in row["size_gb"].split(","):
                name = row["name"].format(size)
                if is_wanted and name not in known:
                    found.append(_device(row, int(size)))
                known.add(name)
    return tuple(found)


class _Index(NamedTuple):
    by_name: dict[Words, tuple[KnownDevice, ...]]
    by_other: dict[Words, tuple[KnownDevice, ...]]  # without its size, with it, by another name


@lru_cache(maxsize=64)
def _index(words: Words) -> _Index:
    """Of the devices that may be meant by these words."""
    index = _Index({}, {})
    for device in _devices(words):
        _enter(index.by_name, words_of(device.name), device)
        for other in (device.model, *device.also):
            words = words_of(other)
            _enter(index.by_other, words, device)
            _enter(index.by_other, tuple(sorted((*words, str(device.size_gb)))), device)
    return index


def _enter(index: dict[Words, tuple[KnownDevice, ...]], words: Words, device: KnownDevice) -> None:
    known = index.get(words, ())
    if not known or known[-1] is not device:
        index[words] = (*known, device)


def _once(devices: Iterable[KnownDevice]) -> tuple[KnownDevice, ...]:
    return tuple(dict.fromkeys(devices))


def _made(name: str, devices: Iterable[KnownDevice]) -> tuple[KnownDevice, ...]:
    """Those by the maker that the name tells, if it tells one."""
    makers = makers_in(name)
    return tuple(one for one in devices if not makers or one.vendor.value in makers)


def _in_laptops(index: _Index, wanted: Words) -> tuple[KnownDevice, ...]:
    """Before Ampere a laptop's card bears the desktop's name, and has its memory."""
    if "laptop" not in wanted:
        return ()
    plain = tuple(word for word in wanted if word != "laptop")
    named = index.by_name.get(plain) or index.by_other.get(plain, ())
    return tuple(one for one in named if one.name.startswith(("GTX", "RTX 20", "Quadro")))


def _near(text: str, wanted: Words) -> str:
    """What may have been meant: devices of the kind that is named, of the memory that is stated, of similar letters."""
    from edgekit.sources.filenames import close_names

    kinds, size_gb = kinds_in(text), memory_in(text)
    known = [one for one in all_devices() if not kinds or one.kind.value in kinds]
    telling = tuple(word for word in wanted if word != str(size_gb))  # the memory is compared apart
    is_kind_alone = all(kinds_in(word) for word in telling)
    scored: list[tuple[tuple[int, bool, int, bool, str, str], str]] = []
    for one in known:
        shared, others = likeness(telling, words_of(one.name))
        fits = size_gb is not None and one.size_gb == size_gb
        if shared > 1 or (kinds and (fits or is_kind_alone)):
            scored.append(((shared, fits, others, one.usual, one.released, one.name), one.name))
    names = [name for _, name in sorted(scored, reverse=True)]
    names = names or list(close_names(text, (one.name for one in known)))
    if not names:
        return (
            "for example RTX 4090, H100, MI300X, m3-max-64, phone-8; full list: edgekit hardware --devices; "
            "or give --ram and --vram"
        )
    return f"did you mean {', '.join(names[:SHOWN])}?"


@cache
def _lines(file: str) -> tuple[str, ...]:
    from pkgutil import get_data  # importlib.resources would take longer than all the rest

    text = get_data("edgekit.machine", f"device_data/{file}") or b""
    return tuple(text.decode().splitlines()[1:])


@cache
def app_limits() -> dict[tuple[Vendor, int], AppLimit]:
    """By maker (Apple's iOS, or Android) and RAM in GB."""
    from pkgutil import get_data

    text = get_data("edgekit.machine", f"device_data/{APP_LIMITS_FILE}") or b""
    found: dict[tuple[Vendor, int], AppLimit] = {}
    for line in text.decode().splitlines()[1:]:
        vendor, size_gb, app_mib, plain_mib, source = line.split("\t")
        found[Vendor(vendor), int(size_gb)] = AppLimit(
            app_bytes=_bytes(app_mib), plain_bytes=_bytes(plain_mib) or None, source=source
        )
    return found


def _device(row: dict[str, str], size_gb: int) -> KnownDevice:
    kind, vendor = DeviceKind(row["kind"]), Vendor(row["vendor"])
    memory_bytes = _bytes(row["memory_mib"]) or _reported(kind, vendor, size_gb)
    app_limit = app_limits()[vendor, size_gb] if kind is DeviceKind.PHONE else None
    usable_bytes = _bytes(row["usable_mib"]) or _usable(kind, vendor, memory_bytes)
    model = row["name"].replace(" {}GB", "").replace("-{}", "")
    return KnownDevice(
        name=row["name"].format(size_gb),
        model=model,
        kind=kind,
        vendor=vendor,
        size_gb=size_gb,
        memory_bytes=memory_bytes,
        usable_bytes=usable_bytes if app_limit is None else app_limit.app_bytes,
        basis=_basis(kind, app_limit),
        bandwidth_bytes_per_s=round(float(row["bandwidth_gb_s"] or 0) * 10**9) or None,
        capability=_capability(row["capability"]),
        released=row["released"],
        usual=bool(row["usual"]),
        also=tuple(row["also"].split("; ")) if row["also"] else (),
        source=row["source"],
        app_limit=app_limit,
    )


def _basis(kind: DeviceKind, app_limit: AppLimit | None) -> Basis:
    if app_limit is not None and app_limit.assumed:
        return Basis.ASSUMED
    return Basis.EXACT if kind is DeviceKind.MAC else Basis.MODELLED


def _bytes(mib: str) -> int:
    return int(mib or 0) * MIB


def _reported(kind: DeviceKind, vendor: Vendor, size_gb: int) -> int:
    permille = _REPORTED_PERMILLE[vendor if kind is DeviceKind.GPU else kind]
    reported_bytes = size_gb * 1024 * permille // 1000 * MIB
    if kind is DeviceKind.BOARD:
        return min(reported_bytes, size_gb * 1024 * MIB - _BOARD_KEEPS_BYTES)
    return reported_bytes


def _usable(kind: DeviceKind, vendor: Vendor, memory_bytes: int) -> int:
    if kind is not DeviceKind.GPU or vendor is not Vendor.NVIDIA:
        return memory_bytes
    return memory_bytes - _DRIVER_KEEPS_BYTES - int(memory_bytes * _DRIVER_KEEPS_PERMILLE / 1000)


def _capability(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if text else None


# The longest name in the table has 52 characters, the longest a driver gives some 70.
MAX_NAME_CHARS = 120

_MARKS = re.compile(r"\((?:r|tm|c)\)|[®™©]", re.IGNORECASE)
# A Mac is known by its chip: the "Pro" of a MacBook Pro is not that of an M3 Pro.
_HOUSINGS = re.compile(r"\b(?:macbook (?:pro|air)|mac (?:studio|mini|pro)|imac)\b")
_UNIT = re.compile(r"(?<=\d)[\s-]*gi?b(?![a-z0-9])")  # 64GB, 64 GiB
_SHORT_UNIT = re.compile(r"(?<![a-z0-9])(\d+)\s*g(?![a-z0-9])")  # 64g; but A10G is a card
_PRO = re.compile(r"\bpro(?=[\s-]*[wv][0-9])")  # Radeon PRO W6800, V620: the letter says it
_WORD = re.compile(r"[0-9]+|[a-z]+")
# Makers and words that no two devices differ by.
_NOISE = frozenset({
    "nvidia", "geforce", "tesla", "amd", "ati", "radeon", "instinct", "intel", "arc", "apple", "google", "samsung",
    "gpu", "graphics", "card", "generation", "edition", "developer", "kit", "engineering", "reference", "with",
    "design", "the",
})  # fmt: skip
_SERIES = frozenset({"rtx", "gtx", "rx"})  # says nothing beside a number, unlike TITAN RTX
_SAME = {"mobile": "laptop", "notebook": "laptop"}
# Words that only one maker's devices bear: a GeForce GTX 780M is no Radeon 780M.
_MAKERS = {
    "nvidia": "nvidia", "geforce": "nvidia", "tesla": "nvidia", "gtx": "nvidia", "rtx": "nvidia",
    "amd": "amd", "radeon": "amd", "instinct": "amd", "rx": "amd", "intel": "intel", "apple": "apple",
}  # fmt: skip

# Words that name a kind of machine, as devices.Kind has them.
_KINDS = {
    "mac": ("mac", "macbook", "imac", "m1", "m2", "m3", "m4", "m5"),
    "phone": ("phone", "iphone", "ipad", "pixel", "galaxy", "android", "tablet"),
    "board": ("jetson", "orin", "raspberry", "pi", "dgx", "spark"),
    "apu": ("apu", "ryzen", "strix", "halo", "snapdragon"),
    "gpu": ("gpu", "card", "rtx", "gtx", "rx", "geforce", "quadro", "tesla", "titan"),
}
_MEMORY = re.compile(r"(?<![0-9.])([0-9]{1,4})[\s-]*g(?:i?b)?(?![a-z0-9])", re.IGNORECASE)

Words = tuple[str, ...]


def words_of(name: str) -> Words:
    """'NVIDIA GeForce RTX 4090', 'rtx4090', '4090' -> ('4090',). In alphabetical order; none for mere noise."""
    plain = _MARKS.sub(" ", name[:MAX_NAME_CHARS])
    if not plain.isascii():
        plain = unicodedata.normalize("NFKC", plain)
    plain = plain.lower().replace("_", " ")
    plain = _PRO.sub(" ", _HOUSINGS.sub(" ", plain))
    plain = _SHORT_UNIT.sub(r"\1 ", _UNIT.sub(" ", plain))
    found = [word for word in _WORD.findall(plain) if word not in _NOISE]
    dropped = frozenset[str]() if "titan" in found else _SERIES
    kept = (_SAME.get(word, word) for word in found if word not in dropped)
    return tuple(sorted(kept))


def makers_in(name: str) -> frozenset[str]:
    """The makers that the name tells: 'GeForce RTX 4090' -> nvidia; none for '4090'."""
    words = _WORD.findall(name[:MAX_NAME_CHARS].lower())
    return frozenset(_MAKERS[word] for word in words if word in _MAKERS)


def likeness(wanted: Words, known: Words) -> tuple[int, int]:
    """How near two names are: letters and digits in the words they share; then, the fewer others the better."""
    shared = set(wanted) & set(known)
    telling = sum(len(word) for word in shared if len(word) > 1)
    return telling, -len(set(wanted) ^ set(known))


def kinds_in(name: str) -> frozenset[str]:
    """The kinds of machine that the name tells: 'Mac mini 16GB' -> mac; none for '4090'."""
    words = set(re.findall(r"[a-z]+[0-9]?", name[:MAX_NAME_CHARS].lower()))
    plain = words | {word.rstrip("0123456789") for word in words if len(word) > 2}
    return frozenset(kind for kind, known in _KINDS.items() if plain & set(known))


def memory_in(name: str) -> int | None:
    """The memory in GB that the name states: 'Mac mini 16GB' -> 16."""
    found = _MEMORY.search(name[:MAX_NAME_CHARS])
    return None if found is None else int(found[1])


def known_bandwidth(name: str, memory_bytes: int) -> int | None:
    """Bytes a second. The size tells chips of one name apart: an M3 Max of 36 GB has 300 GB/s, one of 48 has 400."""
    row = device_like(name, memory_bytes=memory_bytes)
    return None if row is None else row.bandwidth_bytes_per_s
