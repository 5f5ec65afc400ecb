"""The command that packs the weights of a repository: mlx_lm.convert."""

from __future__ import annotations

from edgekit.engines.commands import as_file
from edgekit.engines.mlx.types import PackingMode, Quantize


def converted_name(label: str, packed: Quantize) -> str:
    """The folder that mlx_lm.convert is told to write."""
    return as_file(f"{label.rsplit('/', maxsplit=1)[-1].partition(':')[0]}-{_told(packed)}")


def _told(packed: Quantize) -> str:
    if packed.recipe is not None:
        return packed.recipe.value
    mode = packed.packing.mode
    return f"{packed.packing.bits}bit" if mode is PackingMode.AFFINE else mode.value


def convert_words(repository: str, packed: Quantize, label: str) -> list[str]:
    """The command that packs the weights of a repository so."""
    words = ["mlx_lm.convert", "--hf-path", repository, "-q"]
    packing = packed.packing
    if packed.recipe is not None:
        words += ["--quant-predicate", packed.recipe.value]
    elif packing.mode is not PackingMode.AFFINE:
        words += ["--q-mode", packing.mode.value]
    else:
        words += ["--q-bits", str(packing.bits), "--q-group-size", str(packing.group_size)]
    return [*words, "--mlx-path", converted_name(label, packed)]
