"""Where a model was found -> what the engines call it on their own command lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.sources.reference import Reference
    from edgekit.sources.types import ModelFiles

PLACEHOLDER = "MODEL"
UNCONVERTED = "Q4_K_M"  # engines.llamacpp.mixes.DEFAULT_MIX


def repository_word(files: ModelFiles | None, known: str = "") -> str:
    """What vLLM and mlx-lm call the model: a hub id or a folder. `known`: its id, where there are no files."""
    from edgekit.sources.types import Origin

    if files is None:
        return known or PLACEHOLDER
    if files.origin is not Origin.LOCAL:
        return files.label
    from pathlib import Path

    path = Path(files.reference)
    return str(path.parent) if path.suffix in {".json", ".safetensors"} else files.reference


def own_word(files: ModelFiles | None, label: str = "", mix: str = "") -> str:
    """What EdgeKit itself calls it: a file, a hub id, an address, or a name of the catalog with a quantisation."""
    from edgekit.sources.types import Origin

    if files is None:
        return f"{label.removeprefix('sample:')}:{mix or UNCONVERTED}"
    if files.origin is Origin.URL:
        return files.reference
    return local_file(files)


def as_file(name: str) -> str:
    return "".join(char if char.isalnum() or char in "._-" else "-" for char in name)


def gguf_search(label: str) -> str:
    """Where to look for GGUF files of a model."""
    from urllib.parse import quote_plus

    return f"https://huggingface.co/models?library=gguf&search={quote_plus(plain_name(label))}"


def plain_name(label: str) -> str:
    """'sample:gemma-3-27b' -> 'gemma-3-27b', 'Qwen/Qwen3-8B' -> 'Qwen3-8B'."""
    name = label.removeprefix("sample:").rsplit("/", maxsplit=1)[-1]
    return name.partition(":")[0] or PLACEHOLDER


def local_file(files: ModelFiles) -> str:
    """The first file of the set, in the folder that was named."""
    from pathlib import Path

    from edgekit.sources.types import Origin

    if files.origin is not Origin.LOCAL or not files.weights:
        return files.label
    path = Path(files.reference).expanduser()
    return str(path / files.weights[0].name) if path.is_dir() else files.reference


def parsed(reference: str, *, is_name: bool = False) -> Reference | None:
    """None for a path. `is_name`: it was found under this name, so whatever lies here it is none."""
    from edgekit.errors import UsageError
    from edgekit.sources.local import is_here
    from edgekit.sources.reference import parse_reference

    path = reference.startswith((".", "/", "~", "\\")) or reference[1:3] == ":\\"
    if path or (not is_name and is_here(reference)):
        return None
    try:
        return parse_reference(reference)
    except UsageError:
        return None
