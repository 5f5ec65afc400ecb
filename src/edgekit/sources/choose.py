"""A listing of files -> the files of one model: one choice for folders, the hub and caches.

In this order:
1. A file that was named is taken, with the rest of its shard set.
2. A quantisation that was named is looked for among the GGUF files, and nowhere else.
3. A whole safetensors set with a config.json in the root is the model itself. GGUF files beside it
   are conversions of it: they become `alternatives`, and `:Q4_K_M` asks for one.
4. GGUF files: Q4_K_M, else Q8_0, else the first by name (fewest folders first). llama.cpp's `-hf`
   would download the same: common/download.cpp:686 @ b21e4de.
5. Safetensors without a config.json; then a config.json alone, a geometry without weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgekit.errors import EdgekitError, HeaderError, NotFoundError
from edgekit.sources.naming import (
    CONFIG_NAME,
    INDEX_NAME,
    INDEX_SUFFIX,
    PICKLE_SUFFIXES,
    QUANT_CONFIG_NAMES,
    SHOWN,
    FileSet,
    base_of,
    close_names,
    folder_of,
    group_shards,
    plain_words,
    quant_tag,
    safetensors_set,
    with_quant,
)
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    reference: str
    label: str
    origin: Origin
    quant: str | None


def choose_files(
    files: Sequence[ModelFile],
    *,
    reference: str,
    label: str,
    origin: Origin,
    quant: str | None = None,
    filename: str | None = None,
) -> ModelFiles:
    """The model among `files`, whose names are paths from the root of the repository or folder.

    NotFoundError, with candidates, when what was asked for is not there, not all there, or several
    things; HeaderError when what is there is not a model that can be read.
    """
    request = _Request(reference=reference, label=label, origin=origin, quant=quant)
    # A name with control characters is no model's; it would only reach somebody's terminal.
    listing = tuple(sorted((f for f in files if f.name.isprintable()), key=_place))
    if filename is not None:
        return _choose_named(listing, filename, request)
    models = [one for one in group_shards(listing, ".gguf") if not one.is_companion]
    if quant is not None and not models:
        raise NotFoundError(f"{label} has no GGUF files, so there is no {quant}: leave out the tag")
    root = [file for file in listing if "/" not in file.name]
    if models and (quant is not None or not _is_whole(root)):
        return _choose_gguf(models, listing, request)
    found = _choose_safetensors(root, listing, request)
    return replace(found, alternatives=tuple(dict.fromkeys(one.title for one in models)))


def _place(file: ModelFile) -> tuple[int, str, str]:
    return file.name.count("/"), file.name.lower(), file.name


def _choose_gguf(
    models: list[FileSet], listing: Sequence[ModelFile], request: _Request
) -> ModelFiles:
    chosen = _pick(models, request)
    found = _gguf_files(chosen, models, listing, request)
    if request.quant is None and found.alternatives and chosen.tag != DEFAULT_QUANTS[0]:
        note = f"{request.label} has no {DEFAULT_QUANTS[0]}, so {chosen.title} was used"
        return replace(found, notes=(note,))
    return found


def _pick(models: list[FileSet], request: _Request) -> FileSet:
    if request.quant is not None:
        found = with_quant(models, request.quant)
        if not found:
            raise _no_such_quant(request.quant, models, request.label)
    else:
        # A repository is about one model; a folder on this disk may be a drawer of many.
        if request.origin is Origin.LOCAL:
            _refuse_several(models, request.label)
        found = next(filter(None, (with_quant(models, q) for q in DEFAULT_QUANTS)), models[:1])
    _refuse_several(found, request.label)
    return found[0]


def _no_such_quant(quant: str, models: list[FileSet], label: str) -> NotFoundError:
    titles = [one.title for one in models]
    # All of them: there are few, and which exist is what the reader wants to know.
    ranked = tuple(dict.fromkeys((*close_names(quant, titles), *titles)))
    return NotFoundError(f"{label} has no {quant}", candidates=ranked[: 4 * SHOWN])


def _refuse_several(models: list[FileSet], label: str) -> None:
    if len({one.model for one in models}) > 1:
        raise NotFoundError(
            f"{label} has {len(models)} GGUF files of different models: name one of them",
            candidates=tuple(one.files[0].name for one in models[: 2 * SHOWN]),
        )


def _gguf_files(
    chosen: FileSet, models: list[FileSet], listing: Sequence[ModelFile], request: _Request
) -> ModelFiles:
    chosen.require_whole(request.label)
    local = request.origin is Origin.LOCAL
    peers = [one for one in models if one.model == chosen.model or not local]
    label = f"{request.label}{':' if chosen.tag else '/'}{chosen.title}"
    return ModelFiles(
        reference=request.reference,
        label=base_of(chosen.files[0].name) if local else label,
        origin=request.origin,
        container=Container.GGUF,
        weights=chosen.files,
        projectors=_projectors(chosen, models, listing),
        alternatives=tuple(dict.fromkeys(o.title for o in peers if o.title != chosen.title)),
    )


def _projectors(
    chosen: FileSet, models: list[FileSet], listing: Sequence[ModelFile]
) -> tuple[ModelFile, ...]:
    """The mmproj files in the model's folder or above it, the one llama.cpp would take first.

    Where several models share a folder, only those that carry the model's name.
    """
    shared = len({one.model for one in models}) > 1
    path = f"{folder_of(chosen.stem)}/"
    beside = [
        file
        for file in listing
        if file.name.lower().endswith(".gguf")
        and "mmproj" in base_of(file.name).lower()
        and path.startswith(f"{folder_of(file.name)}/".removeprefix("/"))
        and not (shared and f"-{chosen.model}-" not in f"-{plain_words(base_of(file.name))}-")
        and file not in chosen.files
    ]
    # common/download.cpp:543 @ b21e4de: the deepest folder, then the nearest number of bits.
    bits = _bits(chosen.stem)
    beside.sort(key=lambda f: (-f.name.count("/"), abs(_bits(f.name) - bits)))
    return tuple(beside)


def _bits(name: str) -> int:
    """Of Q4_K_M 4, of BF16 16, of no quantisation 0."""
    match = re.search(r"[0-9]+", quant_tag(name) or "")
    return int(match[0]) if match else 0


def _choose_safetensors(
    root: list[ModelFile], listing: Sequence[ModelFile], request: _Request
) -> ModelFiles:
    """The safetensors set in `root`, else its config.json, else the reason why there is neither."""
    config = _file_called(CONFIG_NAME, root)
    if config is None and _file_called("model_index.json", root):
        raise HeaderError("a diffusion pipeline, not a language model", file=request.label)
    chosen = safetensors_set(root, request.label)
    # A cache may hold a part of a model: its config still tells the geometry.
    partial = chosen is not None and chosen.missing_count > 0
    excused = partial and config is not None and request.origin is Origin.HUB_CACHE
    if chosen is not None and not excused:
        chosen.require_whole(request.label)
        return _safetensors_files(root, request, chosen.files)
    pickles = [file.name for file in root if file.name.lower().endswith(PICKLE_SUFFIXES)]
    if config is None or any(file.name.startswith("adapter_") for file in root):
        raise _nothing_usable(listing, pickles, request.label)
    notes = (
        [f"{pickles[0]} was not read, because unpickling runs code: no weights"] if pickles else []
    )
    notes += ["the cache has only part of the weights: no weights"] if partial else []
    found = _safetensors_files(root, request, ())
    return replace(found, container=Container.CONFIG, notes=tuple(notes))


def _nothing_usable(listing: Sequence[ModelFile], pickles: list[str], label: str) -> EdgekitError:
    names = [file.name for file in listing]
    if any(name.startswith("adapter_") for name in names):
        return HeaderError("this is a LoRA adapter, not a model: give the base model", file=label)
    if pickles:
        return HeaderError(
            (
                f"{pickles[0]} is a pickle, which is never read because unpickling runs code: use "
                "a safetensors or GGUF version"
            ),
            file=label,
        )
    if not names:
        return NotFoundError(f"{label} is empty: it has no GGUF, safetensors or config.json")
    folders = [folder_of(name) for name in names if base_of(name) == CONFIG_NAME]
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return NotFoundError(
        f"{label} has no GGUF, safetensors or config.json, only {shown}",
        candidates=tuple(folders[:SHOWN]),
    )


def _safetensors_files(
    folder: Sequence[ModelFile], request: _Request, weights: tuple[ModelFile, ...]
) -> ModelFiles:
    """Weights with the JSON files that lie in their folder."""
    indexes = [file for file in folder if base_of(file.name).endswith(INDEX_SUFFIX)]
    quant_configs = (_file_called(name, folder) for name in QUANT_CONFIG_NAMES)
    return ModelFiles(
        reference=request.reference,
        label=request.label,
        origin=request.origin,
        container=Container.SAFETENSORS,
        weights=weights,
        config=_file_called(CONFIG_NAME, folder),
        index=_file_called(INDEX_NAME, folder) or next(iter(indexes), None),
        quantization=next(filter(None, quant_configs), None),
    )


def _is_whole(root: list[ModelFile]) -> bool:
    """Whether a config.json and all its safetensors are there."""
    try:
        chosen = safetensors_set(root, "")
    except NotFoundError:
        return False
    whole = chosen is not None and not chosen.missing_count
    return whole and _file_called(CONFIG_NAME, root) is not None


def _choose_named(listing: Sequence[ModelFile], filename: str, request: _Request) -> ModelFiles:
    file = _find(listing, filename, request.label)
    base = base_of(file.name).lower()
    folder = [one for one in listing if folder_of(one.name) == folder_of(file.name)]
    if base.endswith(".gguf"):
        sets = group_shards(listing, ".gguf")
        chosen = next(one for one in sets if file in one.files)
        models = [one for one in sets if not one.is_companion]
        return _gguf_files(chosen, models, listing, request)
    if base.startswith("adapter_"):
        raise HeaderError(
            "this is a LoRA adapter, not a model: give the base model", file=file.name
        )
    if base.endswith(INDEX_SUFFIX):
        return _choose_safetensors(folder, listing, request)
    if base.endswith(".safetensors"):
        sets = group_shards(folder, ".safetensors")
        chosen = next(one for one in sets if file in one.files)
        chosen.require_whole(request.label)
        return _safetensors_files(folder, request, chosen.files)
    if base.endswith(".json"):
        found = _safetensors_files((), request, ())
        return replace(found, container=Container.CONFIG, config=file)
    raise HeaderError("not a .gguf, .safetensors or config.json file", file=file.name)


def _find(listing: Sequence[ModelFile], filename: str, label: str) -> ModelFile:
    """The file of that name; case, then folders, do not matter where only one file is left."""
    folded = filename.lower()
    for found in (
        [file for file in listing if file.name == filename],
        [file for file in listing if file.name.lower() == folded],
        [file for file in listing if base_of(file.name).lower() == folded],
    ):
        if len(found) == 1:
            return found[0]
    names = [file.name for file in listing if file.name.lower().endswith((".gguf", ".safetensors"))]
    near = close_names(filename, names) or tuple(names[:SHOWN])
    raise NotFoundError(f"{label} has no file {filename}", candidates=near)


def _file_called(base: str, folder: Sequence[ModelFile]) -> ModelFile | None:
    return next((file for file in folder if base_of(file.name) == base), None)
