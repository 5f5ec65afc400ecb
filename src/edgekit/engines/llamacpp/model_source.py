"""How commands for llama.cpp and its front ends refer to the model of a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.engines.commands import (
    PLACEHOLDER,
    as_file,
    gguf_search,
    local_file,
    parsed,
    plain_name,
    repository_word,
)
from edgekit.engines.llamacpp.architectures import DEFAULT_MIX, default_mix
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.formats.mixes import plain_mix
from edgekit.index.repositories import Form, repository_at
from edgekit.sources.reference import HubModel, WebFile
from edgekit.sources.types import Container, Origin

if TYPE_CHECKING:
    from edgekit.engines.commands import Startup
    from edgekit.model import OpenModel
    from edgekit.sources.types import ModelFiles

PLACEHOLDER_FILE = "MODEL.gguf"
PLACEHOLDER_DRAFT = "DRAFT.gguf"
PLACEHOLDER_PROJECTOR = "MMPROJ.gguf"
NO_PROJECTOR = "--no-mmproj"  # -hf would load a vision model's projector, which is not in the bill
TEXT_ONLY = f"text only: without {NO_PROJECTOR} llama.cpp also loads the image projector, which is not counted here"


def model_source(startup: Startup) -> GgufSource:
    """The file, the repository, or a placeholder if no repository is known."""
    variant, files = startup.variant, startup.files
    has_projector = startup.has_part("projector")
    if not has_own_file(startup):
        mix = LlamaCppSetup.of(startup.setup).mix or variant.name
        return gguf_source(files, mix, startup.label, projector=has_projector)
    if files is not None and variant.reference in {"", files.reference}:
        words = gguf_source(files).words
    else:
        is_name = files is not None and files.origin.is_remote
        words = typed_gguf_words(variant.reference, is_name=is_name)
    return GgufSource([*words, NO_PROJECTOR] if words[0] == "-hf" and not has_projector else words)


def has_own_file(startup: Startup) -> bool:
    """True if the weights are an existing GGUF file: the one given, or one of a repository."""
    if LlamaCppSetup.of(startup.setup).mix is not None:
        return False
    files = startup.files
    stored = files is not None and files.container is Container.GGUF
    return bool(startup.variant.reference) or stored


def estimate_source(
    values: Mapping[str, Any], opened: OpenModel, *, loads_projector: bool
) -> GgufSource:
    """The source of an estimate's model, at its quantisation. `loads_projector`: -hf loads one unasked."""
    files = opened.files
    is_stored = files is not None and files.container is Container.GGUF
    mix = values.get("mix") or opened.mix or (None if is_stored else default_mix(opened.model))
    has_projector = "mmproj" in values or loads_projector
    source = gguf_source(files, mix, opened.label, projector=has_projector)
    if files is None or not files.projectors or has_projector or source.words[0] != "-hf":
        return source
    return GgufSource([*source.words, NO_PROJECTOR], source.note)


class GgufSource(NamedTuple):
    """How a llama.cpp command refers to a model, and what the user must do or know first."""

    words: list[str]
    note: str = ""


def gguf_source(
    files: ModelFiles | None, mix: str | None = None, label: str = "", *, projector: bool = False
) -> GgufSource:
    """An existing file, hub id or URL. `mix`: the requested quantisation, if the files lack it. `projector`: it is
    loaded too. Local weights can be quantised locally; for others the catalog may know a repository. If not, the note
    says how to search, and the file name is a placeholder.
    """
    stored = files is not None and files.container is Container.GGUF
    if files is not None and stored and mix is None:
        if files.origin is Origin.URL:
            return GgufSource(["-mu", files.reference])
        if files.origin in {Origin.HUB, Origin.HUB_CACHE}:
            owner, _, path = files.label.partition("/")
            name, slash, file = path.partition("/")
            return GgufSource(
                ["-hf", f"{owner}/{name}", "-hff", file] if slash else ["-hf", files.label]
            )
        return GgufSource(["-m", local_file(files)])
    quant = mix or DEFAULT_MIX
    if files is not None and files.origin in {Origin.LOCAL, Origin.LM_STUDIO, Origin.OLLAMA_STORE}:
        name = plain_name(label)
        for ending in (".gguf", ".safetensors", "config.json"):
            name = name.removesuffix(ending)
        quant = plain_mix(quant)  # llama-quantize makes no dynamic ones
        name = f"{as_file(name).strip('-') or PLACEHOLDER}-{quant}.gguf"  # yet to be created
        if stored:
            steps = f"llama-quantize {local_file(files)} {name} {quant}"
        else:
            convert = (
                f"convert_hf_to_gguf.py {repository_word(files)} --outtype bf16 --outfile bf16.gguf"
            )
            steps = f"{convert}, then llama-quantize bf16.gguf {name} {quant}"
        return GgufSource(["-m", name], f"make {name} first: {steps}")
    return published_gguf(label, quant, projector=projector)


def published_gguf(label: str, mix: str, *, projector: bool = False) -> GgufSource:
    """A repository with this catalog model at this mix; if none is known, a placeholder and a search link."""
    repository = repository_at(label, Form.GGUF, mix)
    if repository is None:
        note = f"no known repository has {plain_name(label)} at {mix}: search {gguf_search(label)}"
        return GgufSource(
            ["-m", PLACEHOLDER_FILE],
            f"{note} and replace {PLACEHOLDER_FILE} with the file you find",
        )
    reference = f"{repository.name}:{repository.tag(mix)}"
    if repository.listed and len(repository.quants) == 1:
        reference = repository.name  # llama.cpp loads the only file without a tag
    words = ["-hf", reference]
    if not projector:
        from edgekit.index import entry_with_id
        from edgekit.index.types import ModelPurpose

        entry = entry_with_id(repository.model)
        if entry is not None and ModelPurpose.VISION in entry.kinds:
            words.append(NO_PROJECTOR)
    return GgufSource(words)


def typed_gguf_words(reference: str, *, is_name: bool = False) -> list[str]:
    """The words for a reference as typed, without looking anything up."""
    match parsed(reference, is_name=is_name):
        case HubModel(repo=repo, quant=quant, filename=None):
            return ["-hf", f"{repo}:{quant}" if quant else repo]
        case HubModel(repo=repo, filename=str(filename)):
            return ["-hf", repo, "-hff", filename]
        case WebFile(url=url):
            return ["-mu", url]
        case _:
            return ["-m", reference]


def model_draft_words(reference: str, *, is_known: bool = False) -> list[str]:
    """-md FILE or -hfd REPOSITORY. A catalog name becomes its repository, or a placeholder."""
    from edgekit.errors import NotFoundError
    from edgekit.index.names import find_entry
    from edgekit.sources.quants import split_quant

    words = ["-m", PLACEHOLDER_DRAFT] if is_known else typed_gguf_words(reference)
    # Not a file's path: perhaps a catalog name.
    if words[0] == "-m" and parsed(reference) is not None:
        name, quant = split_quant(reference)
        with suppress(NotFoundError):
            source = published_gguf(find_entry(name).id, quant or DEFAULT_MIX, projector=True)
            words = ["-m", PLACEHOLDER_DRAFT] if source.note else source.words
    match words:
        case ["-hf", repository, "-hff", file]:
            return ["-hfd", repository, "-md", file]
        case ["-hf", repository]:
            return ["-hfd", repository]
        case _:
            return ["-md", words[1]]
