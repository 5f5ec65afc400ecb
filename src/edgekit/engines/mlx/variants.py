"""The quantisations that mlx_lm.convert makes of a repository, the most accurate first."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.task import Task, Variant
from edgekit.bill.types import MemoryEstimate
from edgekit.engines.mlx.types import MlxSetup, Packing, PackingMode, Quantize
from edgekit.engines.mlx.weights import quantization_of
from edgekit.engines.variants import as_named
from edgekit.model.types import Model
from edgekit.sources.types import Container

BITS = (8, 6, 5, 4, 3)
SMALLER_BITS = (3,)  # unquantised repositories are judged at 4 already


def variants(model: Model, _label: str = "") -> tuple[Variant, ...]:
    """A repository that is quantised already has nothing to choose."""
    is_plain = model.header.container is not Container.GGUF and quantization_of(model) is None
    return at_bits(model) if is_plain else as_named(model)


def at_bits(model: Model, every: tuple[int, ...] = BITS) -> tuple[Variant, ...]:
    """An unquantised repository as mlx_lm.convert would write it."""
    return tuple(
        Variant(
            name=f"{bits} bit",
            model=model,
            accuracy=bits * 100 + 50,  # a scale and a bias of 16 bits for every 64 weights
            changes={"quantize": Quantize(packing=Packing(bits=bits, group_size=64))},
            flags={"quantize": f"q{bits}"},
        )
        for bits in every
    )


def quant_shown(setup: MlxSetup) -> str:
    """A recipe has no name of its own."""
    wanted = setup.quantize
    if not isinstance(wanted, Quantize) or not wanted.rest or wanted.recipe is not None:
        return ""
    mode = wanted.packing.mode
    return f"{wanted.packing.bits} bit" if mode is PackingMode.AFFINE else mode.value


def smaller_weights(task: Task, _capacity_bytes: int) -> Iterator[tuple[Variant, str]]:
    """Each with the command that makes it. None of a packed repository: another one would be needed."""
    if "quantize" not in task.start.settled and quantization_of(task.model) is None:
        for bits in SMALLER_BITS:
            (variant,) = at_bits(task.model, (bits,))
            yield variant, f"mlx_lm.convert -q --q-bits {bits}"


def download_bytes(model: Model, setup: MlxSetup, estimate: MemoryEstimate) -> int | None:
    """The repository that was read, or the weights as they would be packed."""
    own = model.header.file_bytes or model.header.tensor_bytes
    return own if own and setup.quantize is None else estimate.weights_bytes or None
