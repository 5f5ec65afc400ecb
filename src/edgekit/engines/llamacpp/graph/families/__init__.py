"""A GGUF's architecture -> how its graph is built. Families that few models have are imported at first use."""

from __future__ import annotations

from edgekit.engines.llamacpp.architectures import architecture_names, known_architecture
from edgekit.engines.llamacpp.graph.build import GraphFamily
from edgekit.engines.llamacpp.graph.families.transformer import USUAL


def family_of(architecture: str) -> GraphFamily | None:
    """None where no graph is known."""
    if architecture not in architecture_names():
        return None  # config.json's name for it: the tables have GGUF names only
    name = known_architecture(architecture).graph or architecture
    if name in USUAL:
        return USUAL[name]
    from edgekit.engines.llamacpp.graph.families.every import FAMILIES

    return FAMILIES.get(name)
