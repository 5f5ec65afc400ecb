"""A GGUF's architecture -> how its graph is built. Families that few models have are imported when one is asked for."""

from __future__ import annotations

from edgekit.engines.llamacpp.architectures import architecture_names
from edgekit.engines.llamacpp.graph.llama.build import GraphFamily


def family_of(architecture: str) -> GraphFamily | None:
    """None where no graph is known."""
    from edgekit.engines.llamacpp.graph.families.usual import USUAL

    if architecture in USUAL:
        return USUAL[architecture]
    if architecture not in architecture_names():
        return None  # a config's own name for it: no table has that
    from edgekit.engines.llamacpp.graph.families.every import FAMILIES

    return FAMILIES.get(architecture)
