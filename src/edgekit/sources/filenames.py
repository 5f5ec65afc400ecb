"""File names: quantisations, shard sets and companions, and which files of a listing make up the model."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from edgekit.errors import HeaderError, NotFoundError
from edgekit.sources.quants import ALIASES, canonical, tags_in, without_tags
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# How many names a misspelt one is compared with, and how much of each: names of about 90 characters are common. This
# takes 0.05 s for real names, and half a second for the worst (one letter repeated).
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

# llama-gguf-split writes 5 digits; safetensors sets are numbered up to "00001-of-000163".
_SHARD = re.compile(
    r"(?P<stem>.*)-(?P<index>[0-9]{5,6})-of-(?P<count>[0-9]{5,6})(?P<suffix>\.gguf|\.safetensors)",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
# Files that belong to a model but are not one: common/download.cpp:602 @ b21e4de. An imatrix has the word at the start
# or end of its name; models made with one have it in the middle.
# What engines read next to safetensors: tokenizers, chat templates, processors, code of the architecture.
_SMALL_SUFFIXES = (".json", ".jinja", ".model", ".py", ".tiktoken", ".txt")
_COMPANION = re.compile(r"mmproj|mtp-|eagle3-|dflash-|dspark-|^imatrix|imatrix(?:\.gguf)?$")
_VARIANT = re.compile(r"model\.[^.]+")  # model.fp16.safetensors
_NUMBERED = re.compile(r"weights\.[0-9]+")  # older versions of mlx-lm
_SEPARATORS = re.compile(r"[-._ ]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """One file, or the shards of one."""

    stem: str  # the path without shard number and suffix
    tag: str | None  # the quantisation
    files: tuple[ModelFile, ...]  # in shard order
    missing: tuple[int, ...] = ()  # the first few missing shard numbers
    missing_count: int = 0

    @property
    def title(self) -> str:
        """The text that requests this set: its quantisation, else the file name."""
        return self.tag or self.files[0].name

    @property
    def model(self) -> str:
        """The file name without its quantisation: the same for all conversions of a model."""
        return plain_words(without_tags(base_of(self.stem)))

    @property
    def is_companion(self) -> bool:
        return _COMPANION.search(base_of(self.stem).lower()) is not None

    def require_complete(self, label: str) -> None:
        """Raises NotFoundError if a shard is missing."""
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
    """'Gemma_3.27b-' -> 'gemma-3-27b': for comparing different spellings."""
    return _SEPARATORS.sub("-", name.lower()).strip("-")


def quant_tag(name: str) -> str | None:
    """'dir/model-ud-q4_k_xl.gguf' -> 'UD-Q4_K_XL': the last one in the name, else in its folders."""
    folder, _, base = name.rpartition("/")
    for part in (base, folder):
        if tags := tags_in(part):
            return tags[-1]
    return None


def with_quant(sets: Iterable[FileSet], quant: str) -> list[FileSet]:
    """The sets of one quantisation: by name, UD- form or alias, else by any part of the path."""
    sets = list(sets)
    requested = canonical(quant)
    for tag in (requested, f"UD-{requested}", ALIASES.get(requested, requested)):
        if matches := [group for group in sets if group.tag == tag]:
            return matches
    loose = re.compile(rf"(?:^|[-._/]){re.escape(quant)}(?:$|[-./])", re.IGNORECASE)
    return [group for group in sets if loose.search(group.stem)]


def group_shards(files: Iterable[ModelFile], suffix: str) -> list[FileSet]:
    """The files with this suffix as sets, in the order of their first files."""
    groups: dict[tuple[str, int], dict[int, ModelFile]] = {}
    for file in files:
        if not file.name.lower().endswith(suffix):
            continue
        match = _SHARD.fullmatch(file.name)
        if match and int(match["index"]) <= int(match["count"]):
            shards = groups.setdefault((match["stem"], int(match["count"])), {})
            shards.setdefault(int(match["index"]), file)
        else:  # a file that is not a shard is a set of its own
            groups[file.name[: -len(suffix)], 0] = {0: file}
    sets = []
    for (stem, count), shards in groups.items():
        # GGUF counts from 1. Some safetensors sets count from 0, up to `count` or one less.
        from_zero = 0 in shards and count not in shards
        numbers = range(count) if from_zero else range(1, count + 1)
        missing = (number for number in numbers if number not in shards)
        group = FileSet(
            stem=stem,
            tag=quant_tag(stem),
            files=tuple(shards[index] for index in sorted(shards)),
            missing=tuple(islice(missing, SHOWN)),
            missing_count=len(numbers) - sum(number in numbers for number in shards),
        )
        sets.append(group)
    return sets


def safetensors_set(folder: Sequence[ModelFile], label: str) -> FileSet | None:
    """The set that transformers or mlx-lm would load from this folder."""
    sets = [
        group
        for group in group_shards(folder, ".safetensors")
        if not base_of(group.stem).startswith("adapter_")
    ]
    # Mistral ships its own format next to transformers'.
    sets = [group for group in sets if not base_of(group.stem).startswith("consolidated")] or sets
    plain = [group for group in sets if base_of(group.stem) == "model"]
    if plain or len(sets) < 2:
        # Like transformers' modeling_utils, prefer a single file to shards.
        return min(plain or sets, key=lambda group: len(group.files), default=None)
    indexed = any(base_of(file.name).endswith(INDEX_SUFFIX) for file in folder)
    if indexed or all(_NUMBERED.fullmatch(base_of(group.stem)) for group in sets):
        broken = [group for group in sets if group.missing_count]
        joined = replace(sets[0], files=tuple(file for group in sets for file in group.files))
        return broken[0] if broken else joined
    if variants := [group for group in sets if _VARIANT.fullmatch(base_of(group.stem))]:
        return variants[0]
    raise NotFoundError(
        f"{label} has {len(sets)} safetensors files and no index that lists them: name one",
        candidates=tuple(group.files[0].name for group in sets[: 2 * SHOWN]),
    )


def shard_names(name: str) -> list[str]:
    """All possible names of the set that `name` is a shard of, from number 0; just itself if it is not a shard."""
    match = _SHARD.fullmatch(name)
    if match is None or int(match["count"]) > MAX_SHARDS:
        return [name]
    width, count, suffix = len(match["index"]), match["count"], match["suffix"]
    numbers = range(int(count) + 1)
    return [f"{match['stem']}-{number:0{width}d}-of-{count}{suffix}" for number in numbers]


def close_names(name: str, known: Iterable[str], *, limit: int = SHOWN) -> tuple[str, ...]:
    """Names among the first 500 of `known` that are similar to `name`, the best first; swapped letters rank highest."""
    from difflib import get_close_matches  # slow to import, and only typos need it

    folded = {other[:MAX_COMPARED_CHARS].lower(): other for other in islice(known, MAX_COMPARED)}
    typed = name[:MAX_COMPARED_CHARS].lower()
    matches = get_close_matches(typed, folded, n=limit)
    matches.sort(key=lambda match: sorted(match) != sorted(typed))
    return tuple(folded[match] for match in matches)


DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")


def choose_files(
    files: Sequence[ModelFile],
    *,
    label: str,
    origin: Origin,
    quant: str | None = None,
    filename: str | None = None,
) -> ModelFiles:
    """The model among `files`, whose names are paths from the root of the repository or folder.

    NotFoundError, with candidates, if it is missing, incomplete or ambiguous; HeaderError if the files are not a model
    that can be read.
    """
    empty = ModelFiles(label=label, origin=origin, container=Container.CONFIG)
    # No model has control characters in its name, and they must not reach a terminal. Top-level files go first.
    listing = tuple(
        sorted(
            (file for file in files if file.name.isprintable()),
            key=lambda file: (file.name.count("/"), file.name.lower(), file.name),
        )
    )
    if filename is not None:
        return _choose_named(listing, filename, empty)
    models = [group for group in group_shards(listing, ".gguf") if not group.is_companion]
    if quant is not None and not models:
        raise NotFoundError(f"{label} has no GGUF files, so there is no {quant}: leave out the tag")
    root = [file for file in listing if "/" not in file.name]
    if models and (quant is not None or not _is_complete(root)):
        return _choose_gguf(models, listing, quant, empty)
    chosen = _choose_safetensors(root, listing, empty)
    return replace(chosen, alternatives=tuple(dict.fromkeys(group.title for group in models)))


def _choose_gguf(
    models: list[FileSet], listing: Sequence[ModelFile], quant: str | None, empty: ModelFiles
) -> ModelFiles:
    """The GGUF of the requested quantisation, else of the first of DEFAULT_QUANTS that exists, else the first."""
    label, default = empty.label, DEFAULT_QUANTS[0]
    if quant is not None:
        matches = with_quant(models, quant)
        if not matches:
            titles = [group.title for group in models]
            # List all of them: there are few, and the user needs to know which exist.
            ranked = tuple(dict.fromkeys((*close_names(quant, titles), *titles)))
            raise NotFoundError(f"{label} has no {quant}", candidates=ranked[: 4 * SHOWN])
    else:
        # A repository has one model; a folder on this disk may have many.
        if empty.origin is Origin.LOCAL:
            _refuse_several(models, label)
        by_default = (with_quant(models, quant_name) for quant_name in DEFAULT_QUANTS)
        matches = next(filter(None, by_default), models[:1])
    _refuse_several(matches, label)
    chosen = matches[0]
    files = _gguf_files(chosen, models, listing, empty)
    if quant is None and files.alternatives and chosen.tag != default:
        return replace(files, notes=(f"{label} has no {default}, so {chosen.title} was used",))
    return files


def _refuse_several(models: list[FileSet], label: str) -> None:
    """Raises NotFoundError if the sets are of different models."""
    if len({group.model for group in models}) > 1:
        raise NotFoundError(
            f"{label} has {len(models)} GGUF files of different models: name one of them",
            candidates=tuple(group.files[0].name for group in models[: 2 * SHOWN]),
        )


def _gguf_files(
    chosen: FileSet, models: list[FileSet], listing: Sequence[ModelFile], empty: ModelFiles
) -> ModelFiles:
    """The chosen set with its projectors, and the other quantisations of the same model."""
    chosen.require_complete(empty.label)
    is_local = empty.origin is Origin.LOCAL
    peers = [group for group in models if group.model == chosen.model or not is_local]
    separator = ":" if chosen.tag else "/"
    label = f"{empty.label}{separator}{chosen.title}"
    titles = dict.fromkeys(peer.title for peer in peers)
    return replace(
        empty,
        label=base_of(chosen.files[0].name) if is_local else label,
        container=Container.GGUF,
        weights=chosen.files,
        projectors=_projectors(chosen, models, listing),
        alternatives=tuple(title for title in titles if title != chosen.title),
    )


def _projectors(
    chosen: FileSet, models: list[FileSet], listing: Sequence[ModelFile]
) -> tuple[ModelFile, ...]:
    """The mmproj files in the model's folder or above it, starting with the one that llama.cpp would choose.

    If several models share a folder, only projectors with the model's name count.
    """
    is_shared = len({group.model for group in models}) > 1
    model_folder = folder_of(chosen.stem)

    def belongs_to_model(file: ModelFile) -> bool:
        name, folder = base_of(file.name).lower(), folder_of(file.name)
        if "mmproj" not in name or not name.endswith(".gguf"):
            return False
        if folder and not f"{model_folder}/".startswith(f"{folder}/"):
            return False
        return not is_shared or f"-{chosen.model}-" in f"-{plain_words(name)}-"

    projectors = [file for file in listing if belongs_to_model(file) and file not in chosen.files]
    # common/download.cpp:543 @ b21e4de: the deepest folder, then the nearest number of bits.
    bits = _bits(chosen.stem)
    projectors.sort(key=lambda file: (-file.name.count("/"), abs(_bits(file.name) - bits)))
    return tuple(projectors)


def _bits(name: str) -> int:
    """4 for Q4_K_M, 16 for BF16, 0 without a quantisation."""
    match = re.search(r"[0-9]+", quant_tag(name) or "")
    return int(match[0]) if match else 0


def _choose_safetensors(
    root: list[ModelFile], listing: Sequence[ModelFile], empty: ModelFiles
) -> ModelFiles:
    """The safetensors set in `root`, else its config.json, else an error that says why there is neither."""
    label, config = empty.label, _file_called(CONFIG_NAME, root)
    if config is None and _file_called("model_index.json", root):
        raise HeaderError("a diffusion pipeline, not a language model", file=label)
    chosen = safetensors_set(root, label)
    # A cache may hold part of a model: its config still has the geometry.
    is_partial = chosen is not None and chosen.missing_count > 0
    is_config_enough = is_partial and config is not None and empty.origin is Origin.HUB_CACHE
    if chosen is not None and not is_config_enough:
        chosen.require_complete(label)
        return _safetensors_files(root, chosen.files, empty)
    pickles = [file.name for file in root if file.name.lower().endswith(PICKLE_SUFFIXES)]
    if config is not None and not any(file.name.startswith("adapter_") for file in root):
        notes = []
        if pickles:
            notes.append(f"{pickles[0]} was not read, because unpickling runs code: no weights")
        if is_partial:
            notes.append("the cache has only part of the weights: no weights")
        files = _safetensors_files(root, (), empty)
        return replace(files, container=Container.CONFIG, notes=tuple(notes))
    names = [file.name for file in listing]
    if any(name.startswith("adapter_") for name in names):
        raise HeaderError("this is a LoRA adapter, not a model: give the base model", file=label)
    if pickles:
        what = f"{pickles[0]} is a pickle, which is never read because unpickling runs code"
        raise HeaderError(f"{what}: use a safetensors or GGUF version", file=label)
    if not names:
        raise NotFoundError(f"{label} is empty: it has no GGUF, safetensors or config.json")
    folders = [folder_of(name) for name in names if base_of(name) == CONFIG_NAME]
    shown_names = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    raise NotFoundError(
        f"{label} has no GGUF, safetensors or config.json, only {shown_names}",
        candidates=tuple(folders[:SHOWN]),
    )


def _safetensors_files(
    folder: Sequence[ModelFile], weights: tuple[ModelFile, ...], empty: ModelFiles
) -> ModelFiles:
    """Weights with the JSON files in their folder."""
    indexes = [file for file in folder if base_of(file.name).endswith(INDEX_SUFFIX)]
    quant_configs = (_file_called(name, folder) for name in QUANT_CONFIG_NAMES)
    read = (
        _file_called(CONFIG_NAME, folder),
        _file_called(INDEX_NAME, folder) or next(iter(indexes), None),
        next(filter(None, quant_configs), None),
    )
    config, index, quantization = read
    return replace(
        empty,
        container=Container.SAFETENSORS,
        weights=weights,
        config=config,
        index=index,
        quantization=quantization,
        others=tuple(
            file
            for file in folder
            if file.name.lower().endswith(_SMALL_SUFFIXES) and file not in read
        ),
    )


def _is_complete(root: list[ModelFile]) -> bool:
    """Whether config.json and every safetensors shard are present."""
    try:
        chosen = safetensors_set(root, "")
    except NotFoundError:
        return False
    has_weights = chosen is not None and not chosen.missing_count
    return has_weights and _file_called(CONFIG_NAME, root) is not None


def _choose_named(listing: Sequence[ModelFile], filename: str, empty: ModelFiles) -> ModelFiles:
    """The model that the named file belongs to, with its other shards."""
    file = _find_file(listing, filename, empty.label)
    base = base_of(file.name).lower()
    folder = [other for other in listing if folder_of(other.name) == folder_of(file.name)]
    if base.endswith(".gguf"):
        sets = group_shards(listing, ".gguf")
        chosen = next(group for group in sets if file in group.files)
        models = [group for group in sets if not group.is_companion]
        return _gguf_files(chosen, models, listing, empty)
    if base.startswith("adapter_"):
        raise HeaderError(
            "this is a LoRA adapter, not a model: give the base model", file=file.name
        )
    if base.endswith(INDEX_SUFFIX):
        return _choose_safetensors(folder, listing, empty)
    if base.endswith(".safetensors"):
        sets = group_shards(folder, ".safetensors")
        chosen = next(group for group in sets if file in group.files)
        chosen.require_complete(empty.label)
        return _safetensors_files(folder, chosen.files, empty)
    if base.endswith(".json"):
        return replace(empty, config=file)
    raise HeaderError("not a .gguf, .safetensors or config.json file", file=file.name)


def _find_file(listing: Sequence[ModelFile], filename: str, label: str) -> ModelFile:
    """The file of that name; ignoring case, then folders, if only one file matches."""
    folded = filename.lower()
    for matches in (
        [file for file in listing if file.name == filename],
        [file for file in listing if file.name.lower() == folded],
        [file for file in listing if base_of(file.name).lower() == folded],
    ):
        if len(matches) == 1:
            return matches[0]
    names = [file.name for file in listing if file.name.lower().endswith((".gguf", ".safetensors"))]
    similar_names = close_names(filename, names) or tuple(names[:SHOWN])
    raise NotFoundError(f"{label} has no file {filename}", candidates=similar_names)


def _file_called(base: str, folder: Sequence[ModelFile]) -> ModelFile | None:
    """The first file with this name, in any folder of the listing."""
    return next((file for file in folder if base_of(file.name) == base), None)
