"""The GGUF quantisations (mixes) that people use, and the one that a model is converted to."""

from __future__ import annotations

from edgekit.engines.llamacpp.architectures import known_architecture
from edgekit.model.types import Model

DEFAULT_MIX = "Q4_K_M"
# Those that people publish, the largest first.
USUAL_MIXES = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_XXS", "Q2_K")


def default_mix(model: Model) -> str:
    """What a model is converted to if no mix is asked for: Q4_K_M, or its own 4-bit form."""
    return known_architecture(model.geometry.architecture).default_mix or DEFAULT_MIX
