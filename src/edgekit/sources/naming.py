"""File names -> what they say: the quantisation, the shard set, the model, the role beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from edgekit.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgekit.sources.types import ModelFile

# Names of up to some 90 characters are common. So many of the worst kind (one letter repeated) are
# compared in half a second, real ones in 0.05 s.
MAX_COMPARED = 500
MAX_COMPARED_CHARS = 96
SHOWN = 6  # names in one message
INDEX_SUFFIX = ".safetensors.index.json"
INDEX_NAME = f"model{INDEX_SUFFIX}"
CONFIG_NAME = "config.json"
QUANT_CONFIG_NAMES = ("hf_quant_config.json", "quantize_config.json")
MODEL_SUFFIXES = (".gguf", ".safetensors", ".json")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
# The largest public set has 191 shards.
MAX_SHARDS = 4096

_QUANT = re.compile(
    r"(?:^|(?<=[-._/ ]))(?:UD[-_])?"
    r"(?:I?Q[1-9](?:_[A-Z0-9]{1,3})*|TQ[12]_0|I2_S|MXFP[468](?:_MOE)?|NVFP4|BF16|FP?16|FP?32)"
    r"(?=$|[-._/ ])",
    re.IGNORECASE | re.ASCII,
)
_SPELT_FP = re.compile(r"\bFP(?=(?:16|32)$)")
# What people type for short: tools/quantize/quantize.cpp:33 @ b21e4de
SHORT_MIXES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}
_ALIASES = {**SHORT_MIXES, "MXFP4_MOE": "MXFP4"}
# llama-gguf-split writes 5 digits; safetensors sets are numbered up to "00001-of-000163".
_SHARD = re.compile(
    r"(?P<stem>.*)-(?P<index>[0-9]{5,6})-of-(?P<count>[0-9]{5,6})(?P<suffix>\.gguf|\.safetensors)",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
# Files that go with a model and are not one: common/download.cpp:602 @ b21e4de. An imatrix is known
# by the start or end of its name only: models made with one have the word in the middle.
_COMPANION = re.compile(r"mmproj|mtp-|eagle3-|dflash-|dspark-|^imatrix|imatrix(?:\.gguf)?$")
_VARIANT = re.compile(r"model\.[^.]+")  # model.fp16.safetensors
_NUMBERED = re.compile(r"weights\.[0-9]+")  # mlx-lm before it took up the hub's names
_SEPARATORS = re.compile(r"[-._ ]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """One file, or the shards that make one."""

    stem: str  # the path without shard number and suffix
    tag: str | None  # its quantisation
    files: tuple[ModelFile, ...]  # in shard order
    missing: tuple[int, ...] = ()  # the first few shard numbers that are not there
    missing_count: int = 0

    @property
    def title(self) -> str:
        """What to ask for to get it: the quantisation, else the file."""
        return self.tag or self.files[0].name

    @property
    def model(self) -> str:
        """The file's name without its quantisation: equal for the conversions of one model."""
        return plain_words(_QUANT.sub("", base_of(self.stem)))

    @property
    def is_companion(self) -> bool:
        return _COMPANION.search(base_of(self.stem).lower()) is not None

    def require_whole(self, label: str) -> None:
        if self.missing_count:
            more = ", ..." if self.missing_count > len(self.missing) else ""
            numbers = ", ".join(f"{number:05d}" for number in self.missing)
            raise NotFoundError(
                f"{label}: {base_of(self.stem)} is missing {self.missing_count:,} of its "
                f"shards ({numbers}{more}): download them too"
            )


def base_of(name: str) -> str:
    return name.rpartition("/")[2]


def folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def plain_words(name: str) -> str:
    """'Gemma_3.27b-' -> 'gemma-3-27b': for comparing names that people wrote differently."""
    return _SEPARATORS.sub("-", name.lower()).strip("-")


def quant_tag(name: str) -> str | None:
    """'dir/model-ud-q4_k_xl.gguf' -> 'UD-Q4_K_XL': the last in the name, else in its folders."""
    folder, _, base = name.rpartition("/")
    for part in (base, folder):
        if found := _QUANT.findall(part):
            return _canonical(found[-1])
    return None


def with_quant(sets: Iterable[FileSet], quant: str) -> list[FileSet]:
    """The sets of one quantisation: by name, UD- form or alias, else anywhere in the path."""
    sets, wanted = list(sets), _canonical(quant)
    for tag in (wanted, f"UD-{wanted}", _ALIASES.get(wanted, wanted)):
        if found := [one for one in sets if one.tag == tag]:
            return found
    loose = re.compile(rf"(?:^|[-._/]){re.escape(quant)}(?:$|[-./])", re.IGNORECASE)
    return [one for one in sets if loose.search(one.stem)]


def group_shards(files: Iterable[ModelFile], suffix: str) -> list[FileSet]:
    """The files that end in `suffix` as sets, in the order of the first file of each."""
    groups: dict[tuple[str, int], dict[int, ModelFile]] = {}
    for file in files:
        if not file.name.lower().endswith(suffix):
            continue
        match = _SHARD.fullmatch(file.name)
        if match and int(match["index"]) <= int(match["count"]):
            shards = groups.setdefault((match["stem"], int(match["count"])), {})
            shards.setdefault(int(match["index"]), file)
        else:
            groups[file.name[: -len(suffix)], 0] = {0: file}
    return [_file_set(stem, count, shards) for (stem, count), shards in groups.items()]


def safetensors_set(folder: Sequence[ModelFile], label: str) -> FileSet | None:
    """The set that transformers or mlx-lm would load from this folder."""
    sets = [
        one
        for one in group_shards(folder, ".safetensors")
        if not base_of(one.stem).startswith("adapter_")
    ]
    # Mistral ships its own format beside transformers'.
    sets = [one for one in sets if not base_of(one.stem).startswith("consolidated")] or sets
    plain = [one for one in sets if base_of(one.stem) == "model"] or sets[:1] * (len(sets) == 1)
    if plain or not sets:
        # One file goes before shards, as in transformers' modeling_utils.
        return min(plain, key=lambda one: len(one.files), default=None)
    indexed = any(base_of(file.name).endswith(INDEX_SUFFIX) for file in folder)
    if indexed or all(_NUMBERED.fullmatch(base_of(one.stem)) for one in sets):
        broken = [one for one in sets if one.missing_count]
        joined = replace(sets[0], files=tuple(file for one in sets for file in one.files))
        return broken[0] if broken else joined
    if variants := [one for one in sets if _VARIANT.fullmatch(base_of(one.stem))]:
        return variants[0]
    raise NotFoundError(
        f"{label} has {len(sets)} safetensors files and no index that lists them: name one",
        candidates=tuple(one.files[0].name for one in sets[: 2 * SHOWN]),
    )


def shard_names(name: str) -> list[str]:
    """All names of the set that `name` is a shard of; itself where it is none."""
    match = _SHARD.fullmatch(name)
    if match is None or int(match["count"]) > MAX_SHARDS:
        return [name]
    width, count, suffix = len(match["index"]), match["count"], match["suffix"]
    numbers = range(int(count) + 1)
    return [f"{match['stem']}-{number:0{width}d}-of-{count}{suffix}" for number in numbers]


def close_names(wanted: str, known: Iterable[str], *, limit: int = SHOWN) -> tuple[str, ...]:
    """Those of the first 500 `known` that look like `wanted`, best first: the same letters in another order, a common
    slip, before others.
    """
    from difflib import get_close_matches  # only a mistake needs it

    folded = {name[:MAX_COMPARED_CHARS].lower(): name for name in islice(known, MAX_COMPARED)}
    typed = wanted[:MAX_COMPARED_CHARS].lower()
    matches = get_close_matches(typed, folded, n=limit)
    matches.sort(key=lambda match: sorted(match) != sorted(typed))
    return tuple(folded[match] for match in matches)


def _canonical(tag: str) -> str:
    return _SPELT_FP.sub("F", tag.upper().replace("UD_", "UD-"))


def _file_set(stem: str, count: int, shards: dict[int, ModelFile]) -> FileSet:
    # GGUF counts from 1. Some safetensors sets count from 0, and up to `count` or one less.
    from_zero = 0 in shards and count not in shards
    numbers = range(count) if from_zero else range(1, count + 1)
    missing = (number for number in numbers if number not in shards)
    return FileSet(
        stem=stem,
        tag=quant_tag(stem),
        files=tuple(shards[index] for index in sorted(shards)),
        missing=tuple(islice(missing, SHOWN)),
        missing_count=len(numbers) - sum(number in numbers for number in shards),
    )
