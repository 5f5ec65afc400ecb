"""Quantisations to choose among: how accurate one is, and the model as it was named."""

from __future__ import annotations

import math

from edgekit.bill.types import Variant
from edgekit.model.types import Model
from edgekit.sources.filenames import quant_tag
from edgekit.sources.types import ModelFiles

USUAL_ACCURACY = 500  # in hundredths of a bit per weight: Q4_K_M, MLX 4-bit
AS_NAMED = "as stored"


def as_named(model: Model, name: str = AS_NAMED, reference: str = "") -> tuple[Variant, ...]:
    """Nothing to choose: the file or repository that was named."""
    return (Variant(name=name, model=model, accuracy=USUAL_ACCURACY, reference=reference),)


def stored_quant(files: ModelFiles) -> str:
    """The quantisation that the name of a file or repository states."""
    return quant_tag(files.label.rpartition(":")[2]) or quant_tag(files.label) or AS_NAMED


def accuracy_of(mix: str) -> int | None:
    """By the bits of its name: a file's average differs by model, the order of the names does not. None: unknown."""
    from edgekit.formats.mixes import mix_by_name

    known = mix_by_name(mix)
    return round(known.bits_per_weight * 100) if known is not None else None


def stored_accuracy(model: Model) -> int:
    """By the bits that the weights of a file really have; the usual where its directory was not read."""
    weights = [tensor for tensor in model.header.tensors or () if len(tensor.shape) > 1]
    elements = sum(math.prod(tensor.shape) for tensor in weights)
    size = sum(tensor.size_bytes for tensor in weights)
    return round(size * 800 / elements) if elements else USUAL_ACCURACY


def usual_variant(variants: tuple[Variant, ...]) -> Variant:
    """The one that people take: about four and a half bits, or the nearest to it."""
    good = [one for one in variants if one.is_good] or list(variants)
    return next((one for one in good if one.accuracy <= USUAL_ACCURACY), good[-1])
