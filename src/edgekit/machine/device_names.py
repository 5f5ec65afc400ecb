"""What people and drivers call a device -> the words that tell it from others, in one spelling."""

from __future__ import annotations

import re
import unicodedata

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
