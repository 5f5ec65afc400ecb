"""What a plan may choose for mlx-lm: cache types and bits of the weights, the most accurate first."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.types import CacheChoice, Load, MemoryEstimate, Placement, Task, Variant
from edgekit.engines.choices import as_named
from edgekit.engines.mlx.quantization import Packing, PackingMode, Quantize
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.index.repositories import Form, repository_at
from edgekit.model.types import Model
from edgekit.sources.types import Container

CACHE_BITS = (None, 8, 4)
WEIGHT_BITS = (8, 6, 5, 4, 3)
USUAL_BITS = 4
SMALLER_BITS = (3,)  # unquantised repositories are estimated at 4 bits already


def cache_choices(task: Task, _placement: Placement | None = None) -> Iterator[CacheChoice]:
    """The requested cache type, else 16, 8 and 4 bits."""
    if "kv_bits" in task.start.fixed_flags:
        requested = MlxSetup.of(task.start.setup).kv_bits
        yield CacheChoice(
            name=f"{requested} bit", place=0, flags="", is_given=True, is_eight_bit=requested == 8
        )
        return
    for place, bits in enumerate(CACHE_BITS):
        yield CacheChoice(
            name=f"{bits or 16} bit",
            place=place,
            flags="" if bits is None else f"--kv-bits {bits} --quantized-kv-start 0",
            is_eight_bit=bits == 8,
            setup={} if bits is None else {"kv_bits": bits, "quantized_kv_start": 0},
        )


def cache_name(_load: Load, setup: MlxSetup) -> str:
    """The name of the cache type, as `cache_choices` spells it."""
    return f"{setup.kv_bits or 16} bit"


def variants(model: Model, label: str = "") -> tuple[Variant, ...]:
    """Bits to choose from; a quantised repository is used as it is. `label`: a model of the index, which is used as
    somebody has published it if there is a repository at 4 bits, because the user would have to make other ones.
    """
    published = tuple(
        bits for bits in WEIGHT_BITS if label and repository_at(label, Form.MLX, f"{bits}bit")
    )
    # DeepSeek and Kimi are released in FP8, which mlx-lm loads as 16 bits: people run what others made of them
    is_plain = model.header.quantization is None or USUAL_BITS in published
    if model.header.container is Container.GGUF or not is_plain:
        return as_named(model)
    return at_bits(model, published if USUAL_BITS in published else WEIGHT_BITS)


def at_bits(model: Model, choices: tuple[int, ...] = WEIGHT_BITS) -> tuple[Variant, ...]:
    """An unquantised repository as mlx_lm.convert would write it."""
    return tuple(
        Variant(
            name=f"{bits} bit",
            model=model,
            accuracy=bits * 100 + 50,  # a scale and a bias of 16 bits for every 64 weights
            changes={"quantize": Quantize(packing=Packing(bits=bits, group_size=64))},
            flags={"quantize": f"q{bits}"},
        )
        for bits in choices
    )


def published_at(label: str, quant: str) -> str:
    """The repository at these bits ("4 bit")."""
    repository = repository_at(label, Form.MLX, quant.replace(" ", ""))
    return "" if repository is None else repository.name


def quant_shown(setup: MlxSetup) -> str:
    """The short name of the requested quantisation; empty for recipes and packed experts, which have none."""
    quantize = setup.quantize
    has_recipe = isinstance(quantize, Quantize) and quantize.recipe is not None
    return "" if has_recipe else weights_name(setup, "")


def weights_name(setup: MlxSetup, name: str) -> str:
    """The requested packing, else `name`, the quantisation of the file. A recipe is named by its packing."""
    quantize = setup.quantize
    if not isinstance(quantize, Quantize) or not quantize.rest:
        return name
    mode = quantize.packing.mode
    return f"{quantize.packing.bits} bit" if mode is PackingMode.AFFINE else mode.value


def smaller_weights(task: Task, _capacity_bytes: int) -> Iterator[tuple[Variant, str]]:
    """Smaller quantisations, each with the command that makes it. A quantised repository cannot be converted again."""
    if "quantize" not in task.start.fixed_flags and task.model.header.quantization is None:
        for bits in SMALLER_BITS:
            (variant,) = at_bits(task.model, (bits,))
            yield variant, f"mlx_lm.convert -q --q-bits {bits}"


def download_bytes(model: Model, setup: MlxSetup, estimate: MemoryEstimate) -> int | None:
    """The size of the repository, or of the weights as quantised."""
    stored = model.header.file_bytes or model.header.tensor_bytes
    return stored if stored and setup.quantize is None else estimate.weights_bytes or None
