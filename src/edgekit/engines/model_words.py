"""Where a model was found -> what the engines call it on their own command lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.sources.reference import Reference
    from edgekit.sources.types import ModelFiles

PLACEHOLDER = "MODEL"
PLACEHOLDER_FILE = "MODEL.gguf"
PLACEHOLDER_DRAFT = "DRAFT.gguf"
NO_PROJECTOR = "--no-mmproj"  # -hf would load a vision model's projector, which is not in the bill
TEXT_ONLY = f"text only: without {NO_PROJECTOR} llama.cpp also loads the image projector, which is not counted here"
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
    return _local_file(files)


def made_name(label: str, mix: str) -> str:
    """What a file that is still to be made would be called."""
    name = _plain_name(label)
    for ending in (".gguf", ".safetensors", "config.json"):
        name = name.removesuffix(ending)
    return f"{as_file(name).strip('-') or PLACEHOLDER}-{mix}.gguf"


def as_file(name: str) -> str:
    return "".join(char if char.isalnum() or char in "._-" else "-" for char in name)


class GgufSource(NamedTuple):
    """What llama.cpp calls a model, and what the user has to do or know before that works."""

    words: list[str]
    note: str = ""


def gguf_source(
    files: ModelFiles | None, mix: str | None = None, label: str = "", *, projector: bool = False
) -> GgufSource:
    """A file, a hub id or an address that exists. `mix`: the quantisation wanted, where the files do not have it.

    `projector`: it is loaded too. Weights on this machine can be quantised there; for others the catalog is asked for a
    repository. Where it knows none, the note says how to search and the file has a placeholder's name.
    """
    from edgekit.sources.types import Container, Origin

    stored = files is not None and files.container is Container.GGUF
    if files is not None and stored and mix is None:
        if files.origin is Origin.URL:
            return GgufSource(["-mu", files.reference])
        if files.origin in {Origin.HUB, Origin.HUB_CACHE}:
            return GgufSource(_hub_words(files.label))
        return GgufSource(["-m", _local_file(files)])
    wanted = mix or UNCONVERTED
    if files is not None and files.origin in {Origin.LOCAL, Origin.LM_STUDIO, Origin.OLLAMA_STORE}:
        name = made_name(label, wanted)
        if stored:
            steps = f"llama-quantize {_local_file(files)} {name} {wanted}"
        else:
            convert = (
                f"convert_hf_to_gguf.py {repository_word(files)} --outtype bf16 --outfile bf16.gguf"
            )
            steps = f"{convert}, then llama-quantize bf16.gguf {name} {wanted}"
        return GgufSource(["-m", name], f"make {name} first: {steps}")
    return published_gguf(label, wanted, projector=projector)


def published_gguf(label: str, mix: str, *, projector: bool = False) -> GgufSource:
    """A repository that has a model of the catalog at this mix; a placeholder and a search where none is known."""
    from edgekit.catalog.repositories import Form, repository_at

    found = repository_at(label, Form.GGUF, mix)
    if found is None:
        note = f"no known repository has {_plain_name(label)} at {mix}: search {gguf_search(label)}"
        return GgufSource(
            ["-m", PLACEHOLDER_FILE],
            f"{note} and replace {PLACEHOLDER_FILE} with the file you find",
        )
    alone = found.listed and len(found.quants) == 1  # llama.cpp takes it without a tag
    word = found.name if alone else f"{found.name}:{found.tag(mix)}"
    return GgufSource(
        ["-hf", word, *([NO_PROJECTOR] if _sees(found.model) and not projector else [])]
    )


def _sees(model: str) -> bool:
    """Whether a packaged model takes pictures."""
    from edgekit.catalog.packaged import packaged
    from edgekit.catalog.types import Entry, ModelPurpose

    entries = (one for one in packaged() if isinstance(one, Entry) and one.id == model)
    return any(ModelPurpose.VISION in one.kinds for one in entries)


def gguf_search(label: str) -> str:
    """Where to look for GGUF files of a model."""
    from urllib.parse import quote_plus

    return f"https://huggingface.co/models?library=gguf&search={quote_plus(_plain_name(label))}"


def _plain_name(label: str) -> str:
    """'sample:gemma-3-27b' -> 'gemma-3-27b', 'Qwen/Qwen3-8B' -> 'Qwen3-8B'."""
    name = label.removeprefix("sample:").rsplit("/", maxsplit=1)[-1]
    return name.partition(":")[0] or PLACEHOLDER


def _hub_words(label: str) -> list[str]:
    parts = label.split("/")
    if len(parts) <= 2:
        return ["-hf", label]
    return ["-hf", "/".join(parts[:2]), "-hff", "/".join(parts[2:])]


def _local_file(files: ModelFiles) -> str:
    """The first file of the set, in the folder that was named."""
    from pathlib import Path

    from edgekit.sources.types import Origin

    if files.origin is not Origin.LOCAL or not files.weights:
        return files.label
    path = Path(files.reference).expanduser()
    return str(path / files.weights[0].name) if path.is_dir() else files.reference


def typed_gguf_words(reference: str, *, is_name: bool = False) -> list[str]:
    """The same for a reference as people type it, of which nothing was looked up."""
    from edgekit.sources.reference import HubModel, WebFile

    match parsed(reference, is_name=is_name):
        case HubModel(repo=repo, quant=quant, filename=None):
            return ["-hf", f"{repo}:{quant}" if quant else repo]
        case HubModel(repo=repo, filename=str(filename)):
            return ["-hf", repo, "-hff", filename]
        case WebFile(url=url):
            return ["-mu", url]
        case _:
            return ["-m", reference]


def model_draft_words(reference: str, *, is_catalog: bool = False) -> list[str]:
    """-md FILE or -hfd REPOSITORY. A name of the catalog becomes a repository that has it, or a placeholder."""
    from edgekit.catalog import find_entry
    from edgekit.catalog.naming import split_quant
    from edgekit.errors import NotFoundError

    typed = ["-m", PLACEHOLDER_DRAFT] if is_catalog else typed_gguf_words(reference)
    first, word, *file = typed
    name, quant = split_quant(reference)
    try:
        known = "" if first != "-m" or parsed(reference) is None else find_entry(name).id
    except NotFoundError:
        known = ""
    if known:
        found = published_gguf(known, quant or UNCONVERTED, projector=True)
        first, word = ("-md", PLACEHOLDER_DRAFT) if found.note else ("-hf", found.words[1])
    return [{"-hf": "-hfd"}.get(first, "-md"), word, *(["-md", *file[1:]] if file else [])]


def parsed(reference: str, *, is_name: bool = False) -> Reference | None:
    """None for a path. `is_name`: it was found under this name, so whatever lies here it is none."""
    from edgekit.errors import UsageError
    from edgekit.sources.folders import is_here
    from edgekit.sources.reference import parse_reference

    path = reference.startswith((".", "/", "~", "\\")) or reference[1:3] == ":\\"
    if path or (not is_name and is_here(reference)):
        return None
    try:
        return parse_reference(reference)
    except UsageError:
        return None
