"""A GGUF architecture -> the family that builds its graph. Rare families are imported at first use."""

from __future__ import annotations

from edgekit.engines.llamacpp.architectures import architecture_names, known_architecture
from edgekit.engines.llamacpp.graph.build import GraphFamily
from edgekit.engines.llamacpp.graph.families.transformer import USUAL


def family_of(architecture: str) -> GraphFamily | None:
    """The family of an architecture; None if no graph is known."""
    if architecture not in architecture_names():
        return None  # a name from config.json: the tables have GGUF names only
    name = known_architecture(architecture).graph or architecture
    if name in USUAL:
        return USUAL[name]
    from edgekit.engines.llamacpp.graph.families.every import FAMILIES

    return FAMILIES.get(name)
