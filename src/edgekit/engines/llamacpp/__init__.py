"""llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekit.engines.llamacpp.flags import FLAGS, TITLE
from edgekit.sources.types import Container

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.engines.llamacpp.types import LlamaCppSetup
    from edgekit.model.types import Model


class LlamaCpp:
    """The engine. Its rules are imported when they are first needed."""

    name = "llama.cpp"
    title = TITLE
    aliases = ("llamacpp", "llama-cpp", "llama_cpp", "gguf", "ollama")
    loads_gguf = True
    flags = FLAGS

    # --- the bill

    def is_made_for(self, model: Model) -> bool:
        return model.header.container is Container.GGUF

    def version(self, setup: LlamaCppSetup | None) -> str:
        from edgekit.engines.llamacpp.estimate import VERSION

        return VERSION if setup is None else setup.version_name

    def estimate(self, model: Model, load: Load, setup: LlamaCppSetup) -> MemoryEstimate:
        from edgekit.engines.llamacpp.estimate import estimate

        return estimate(model, load, setup)


ENGINE = LlamaCpp()
