"""Where a model was found -> what the engines call it on their own command lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.source.reference import Reference
    from edgekit.source.types import ModelFiles

PLACEHOLDER = "MODEL"
UNCONVERTED = "Q4_K_M"  # engine.llamacpp.as_gguf.DEFAULT_MIX


def repository_word(files: ModelFiles | None, known: str = "") -> str:
    """What vLLM and mlx-lm call the model: a hub id or a folder. `known`: its id, where there are no files."""
    from edgekit.source.types import Origin

    if files is None:
        return known or PLACEHOLDER
    if files.origin is not Origin.LOCAL:
        return files.label
    from pathlib import Path

    path = Path(files.reference)
    return str(path.parent) if path.suffix in {".json", ".safetensors"} else files.reference


def own_word(files: ModelFiles | None, label: str = "", mix: str = "") -> str:
    """What EdgeKit itself calls it: a file, a hub id, an address; a name for a file that is still to be made."""
    from edgekit.source.types import Origin

    if files is None:
        return made_name(label, mix or UNCONVERTED)
    if files.origin is Origin.URL:
        return files.reference
    return _local_file(files)


def made_name(label: str, mix: str) -> str:
    """What a file that is still to be made would be called."""
    name = label.removeprefix("sample:").rsplit("/", maxsplit=1)[-1].partition(":")[0]
    for ending in (".gguf", ".safetensors", "config.json"):
        name = name.removesuffix(ending)
    return f"{as_file(name).strip('-') or PLACEHOLDER}-{mix}.gguf"


def as_file(name: str) -> str:
    return "".join(char if char.isalnum() or char in "._-" else "-" for char in name)


def gguf_words(files: ModelFiles | None, mix: str | None = None, label: str = "") -> list[str]:
    """What llama.cpp calls it: a file, a hub id, an address; a name for a file that is still to be made."""
    from edgekit.source.types import Container, Origin

    if files is None or files.container is not Container.GGUF or mix is not None:
        return ["-m", made_name(label, mix or UNCONVERTED)]
    if files.origin is Origin.URL:
        return ["-mu", files.reference]
    if files.origin in {Origin.HUB, Origin.HUB_CACHE}:
        return _hub_words(files.label)
    return ["-m", _local_file(files)]


def _hub_words(label: str) -> list[str]:
    parts = label.split("/")
    if len(parts) <= 2:
        return ["-hf", label]
    return ["-hf", "/".join(parts[:2]), "-hff", "/".join(parts[2:])]


def _local_file(files: ModelFiles) -> str:
    """The first file of the set, in the folder that was named."""
    from pathlib import Path

    from edgekit.source.types import Origin

    if files.origin is not Origin.LOCAL or not files.weights:
        return files.label
    path = Path(files.reference).expanduser()
    return str(path / files.weights[0].name) if path.is_dir() else files.reference


def typed_gguf_words(reference: str, *, is_name: bool = False) -> list[str]:
    """The same for a reference as people type it, of which nothing was looked up."""
    from edgekit.source.reference import HubModel, WebFile

    match parsed(reference, is_name=is_name):
        case HubModel(repo=repo, quant=quant, filename=None):
            return ["-hf", f"{repo}:{quant}" if quant else repo]
        case HubModel(repo=repo, filename=str(filename)):
            return ["-hf", repo, "-hff", filename]
        case WebFile(url=url):
            return ["-mu", url]
        case _:
            return ["-m", reference]


def parsed(reference: str, *, is_name: bool = False) -> Reference | None:
    """None for a path. `is_name`: it was found under this name, so whatever lies here it is none."""
    from edgekit.errors import UsageError
    from edgekit.source.folders import is_here
    from edgekit.source.reference import parse_reference

    path = reference.startswith((".", "/", "~", "\\")) or reference[1:3] == ":\\"
    if path or (not is_name and is_here(reference)):
        return None
    try:
        return parse_reference(reference)
    except UsageError:
        return None
