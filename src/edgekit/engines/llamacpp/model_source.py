"""What llama.cpp, and the programs around it, are to call the model of a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgekit.engines.llamacpp.mixes import default_mix
from edgekit.engines.model_words import NO_PROJECTOR, GgufSource, gguf_source, typed_gguf_words
from edgekit.sources.types import Container

if TYPE_CHECKING:
    from edgekit.engines.commands import Startup
    from edgekit.model.open import Opened


def model_source(startup: Startup) -> GgufSource:
    """The file, the repository, or a placeholder where no repository is known."""
    variant, files = startup.variant, startup.files
    has_projector = startup.has_part("projector")
    if not has_own_file(startup):
        mix = startup.setup.mix or variant.name
        return gguf_source(files, mix, startup.label, projector=has_projector)
    if files is not None and variant.reference in {"", files.reference}:
        words = gguf_source(files).words
    else:
        is_name = files is not None and files.origin.is_remote
        words = typed_gguf_words(variant.reference, is_name=is_name)
    return GgufSource([*words, NO_PROJECTOR] if words[0] == "-hf" and not has_projector else words)


def has_own_file(startup: Startup) -> bool:
    """Whether the weights are a GGUF file that exists: the one that was named, or one of a repository."""
    if startup.setup.mix is not None:
        return False
    files = startup.files
    stored = files is not None and files.container is Container.GGUF
    return bool(startup.variant.reference) or stored


def estimate_source(values: Mapping[str, Any], opened: Opened) -> GgufSource:
    """The same for an estimate: at the quantisation it is for."""
    files = opened.files
    is_stored = files is not None and files.container is Container.GGUF
    mix = values.get("mix") or opened.mix or (None if is_stored else default_mix(opened.model))
    return gguf_source(files, mix, opened.label, projector="mmproj" in values)
