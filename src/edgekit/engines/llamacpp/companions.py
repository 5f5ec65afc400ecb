"""Files loaded with a model (projector, adapters, drafter) -> their lines of the bill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from edgekit.bill.types import Component, Load, MemoryEstimate, MemoryLine, Setup, Task, cache_type
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.flags import DRAFT_MAX
from edgekit.engines.llamacpp.prepared import prepare
from edgekit.engines.llamacpp.projectors import projector_of
from edgekit.engines.llamacpp.setups import default_setup
from edgekit.engines.llamacpp.types import (
    ALL_LAYERS,
    LlamaCppSetup,
    LoadFacts,
    TensorPlacement,
    pad,
)
from edgekit.engines.llamacpp.weights import PlacedTensor, place
from edgekit.engines.protocol import MOST_IMAGE_TOKENS, Companions
from edgekit.errors import UsageError
from edgekit.formats.types import ModelHeader
from edgekit.machine.types import HOST, Pool, PoolKind
from edgekit.model import OpenModel, block_of
from edgekit.model.types import Model
from edgekit.sources.types import Container, Origin
from edgekit.units import Basis

FLOAT_BYTES = 4
PATCHES = 4096  # at least so many for a projector whose rules are not known
PROJECTOR_WITHIN = 1.0
# A projector made from a config is one at F16. Some repositories also have one at Q8_0, 0.53 of that, which -hf prefers
# for weights of few bits.
UNREAD_WITHIN = 0.5
ADAPTER_WITHIN = 1.0


def draft_tokens(setup: Setup) -> int:
    """How many tokens are drafted at a time; 0 without a drafter."""
    return LlamaCppSetup.of(setup).draft_max


def with_drafter(task: Task, drafter: Model | None, mix: str | None) -> Task:
    """The task with speculative decoding. `drafter`: None if the model's own prediction layers draft."""
    setup = LlamaCppSetup.of(task.start.setup or default_setup())
    setup = replace(setup, draft_max=DRAFT_MAX, load_mtp=drafter is None)
    start = replace(task.start, setup=setup)
    if drafter is None:
        return replace(task, start=start)

    def bill(load: Load, given: Setup) -> MemoryEstimate:
        setup = LlamaCppSetup.of(given)
        main = llamacpp.estimate(task.model, load, setup)
        return bill_with_drafter(main, drafter, load, setup, mix=mix)  # its cache has the same type

    return replace(task, start=start, bill=bill)


def estimate_with(
    companions: Companions,
    model: Model,
    load: Load,
    setup: LlamaCppSetup,
    values: Mapping[str, Any],
) -> MemoryEstimate:
    """The bill of a model with its companion files. Raises RefusedError for files that llama.cpp does not load."""
    bill = llamacpp.estimate(model, load, setup)
    if companions.projector is not None:
        added = projector_lines(companions.projector, load, setup)
        bill = replace(bill, lines=(*bill.lines, *added))
    if companions.adapters:
        at_once = LoadFacts.of(bill).n_ubatch
        added = tuple(adapter_lines(companions.adapters, place(model, setup), at_once))
        bill = replace(bill, lines=(*bill.lines, *added))
    draft = companions.drafter
    if draft is None or draft.model is None:
        return bill
    type_k, type_v = values.get("draft_type_k"), values.get("draft_type_v")
    drafter_load = replace(
        load,
        cache_k=None if type_k is None else cache_type(type_k),
        cache_v=None if type_v is None else cache_type(type_v),
    )
    return bill_with_drafter(bill, draft.model, drafter_load, setup, mix=draft.mix)


def bill_with_drafter(
    main: MemoryEstimate,
    drafter: Model,
    load: Load,
    setup: LlamaCppSetup,
    *,
    mix: str | None = None,
) -> MemoryEstimate:
    """The main model's bill with the drafter's lines added. The driver's context counts once."""
    drafter_lines = (
        replace(line, part="drafter")
        for line in drafter_bill(main, drafter, load, setup, mix=mix).lines
        if line.reserved and line.component is not Component.RUNTIME
    )
    return replace(main, lines=(*main.lines, *drafter_lines))


def drafter_bill(
    main: MemoryEstimate, drafter: Model, load: Load, setup: LlamaCppSetup, *, mix: str | None
) -> MemoryEstimate:
    """The drafter's own bill next to the main model's.

    `load` and `setup` are those of the main model, except that `load` has the drafter's cache types. As in
    speculative.cpp @ 0c1e570, the drafter takes the main model's options, with one row of logits per sequence.
    """
    facts = LoadFacts.of(main)
    drafter_load = replace(
        load,
        context_tokens=facts.n_ctx,
        sequences=facts.n_seq_max,
        unified=facts.kv_streams == 1,
        output_rows=facts.n_seq_max,
    )
    drafter_setup = replace(
        setup,
        n_gpu_layers=ALL_LAYERS,
        cpu_moe=False,
        n_cpu_moe=0,
        overrides=(),
        embeddings=False,
        load_mtp=False,
        mix=mix,
    )
    return llamacpp.estimate(drafter, drafter_load, drafter_setup)


def known_projector(opened: OpenModel, values: Mapping[str, Any]) -> ModelHeader | None:
    """The projector that -hf loads for a model of which no GGUF is open, from its config.json; None if it loads none,
    or its size is not known.
    """
    files = opened.files
    if values.keys() & {"mmproj", "no_mmproj"}:
        return None
    if files is not None and (
        files.container is Container.GGUF or files.origin not in {Origin.HUB, Origin.HUB_CACHE}
    ):
        return None
    return prepare(opened.model).projectors.get(opened.label, lambda: _projector(opened))


def _projector(opened: OpenModel) -> ModelHeader | None:
    """The projector by the model's config.json, or by its entry in the index."""
    config, hidden = opened.model.header.config, opened.model.geometry.hidden
    if opened.files is None and not config:
        config = _config_of_entry(opened.label)
    return projector_of(config, hidden) if config and hidden else None


# Families of which all models with an encoder have the same one, by the architecture and family of an index entry that
# has only GGUF keys. (The files of Mistral Small 3.1 and 3.2 are of the architecture llama.)
_ENCODERS = {("gemma3", "gemma-3"): "gemma3", ("llama", "mistral"): "mistral3"}


def _config_of_entry(name: str) -> Mapping[str, Any]:
    """What is known of the encoder of an entry that is opened from its GGUF keys."""
    from edgekit.index import entry_with_id  # not needed for a file
    from edgekit.index.database import header_of
    from edgekit.index.types import ModelPurpose

    entry = entry_with_id(name)
    if entry is None or ModelPurpose.VISION not in entry.kinds or not entry.has_geometry:
        return {}
    model_type = _ENCODERS.get((entry.architecture, entry.family))
    return header_of(entry).config or {"model_type": model_type, "vision_config": {}}


def projector_lines(header: ModelHeader, load: Load, setup: Setup) -> tuple[MemoryLine, ...]:
    """--mmproj: the weights, exact if the file was read, and the compute buffer for one image.

    The buffer holds the inputs, queries, keys or values of all patches and one feed-forward at a time; without flash
    attention also the scores of all heads. b11549 reserved as much for Gemma 3, InternVL and Idefics 3, and 0.37 to
    1.51 times as much for Qwen 2 to 3.5, Gemma 4, Pixtral and LLaVA.
    """
    if header.keys.get("general.architecture") != "clip" or not header.tensors:
        raise UsageError(f"{header.name} is not a projector (a GGUF of architecture clip)")
    given = LlamaCppSetup.of(setup)
    gpus = (index for index, device in enumerate(given.devices) if not device.rpc)
    pool = Pool(PoolKind.DEVICE, next(gpus, 0)) if given.has_device else HOST
    weights = sum(
        PlacedTensor(tensor=tensor, pool=pool, block=None).size_bytes for tensor in header.tensors
    )

    def number(key: str, default: int) -> int:
        value = header.keys.get(f"clip.vision.{key}")
        return value if type(value) is int and value > 0 else default  # not a boolean

    hidden = number("embedding_length", 1024)
    is_gated = any(".ffn_gate." in tensor.name for tensor in header.tensors)
    forward = number("feed_forward_length", 4 * hidden) * (2 if is_gated else 1)
    heads = number("attention.head_count", 16)
    patches = _patches(header, number)
    # False for audio projectors, and for files with too few keys.
    has_sizes = bool(patches and number("embedding_length", 0))
    patches = patches or PATCHES
    size = FLOAT_BYTES * patches * (forward + 3 * hidden)
    because = f"{patches} patches of one image x ({forward} + {hidden} x 3) floats"
    if number("n_wa_pattern", 0):  # windows: a mask at 32 and at 16 bit
        size += (FLOAT_BYTES + 2) * patches * patches
        because += ", a mask"
    if load.flash_attention is False:
        size += FLOAT_BYTES * patches * patches * heads
        because += f", scores of {heads} heads"
    if header.keys.get("clip.has_audio_encoder") and header.keys.get("clip.has_vision_encoder"):
        size *= 2
        because += ", and as much for sound"
    is_read = header.container is Container.GGUF
    return (
        MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=weights,
            pool=pool,
            basis=Basis.EXACT if is_read else Basis.MODELLED,
            because=f"{len(header.tensors)} tensors of the projector{'' if is_read else ', at F16'}",
            within=None if is_read else UNREAD_WITHIN,
            part="projector",
        ),
        MemoryLine(
            component=Component.COMPUTE,
            size_bytes=pad(size, 128),
            pool=pool,
            basis=Basis.MODELLED if has_sizes else Basis.ASSUMED,
            because=because,
            within=PROJECTOR_WITHIN if has_sizes else None,
            part="projector",
        ),
    )


# Projectors that scale every image, or each of its tiles, to the size that their file states.
_FIXED = frozenset({"gemma3", "idefics3", "internvl", "janus_pro", "ldp", "ldpv2", "llama4", "mlp"})
# Tokens of an image in others, and patches per side of a token unless the file states them: the larger of what clip.cpp
# warms up with and, up to 1,024, of the most that it allows (load_hparams @ b21e4de).
_TOKENS = {
    "dots_ocr": (46 * 46, 2),
    "gemma4v": (280, 3),
    "glm4v": (46 * 46, 2),
    "kimivl": (1024, 2),
    "lfm2": (256, 2),
    "mimovl": (46 * 46, 2),
    "minimax_m3": (576, 2),
    "pixtral": (1024, 1),
    "qwen2.5vl_merger": (46 * 46, 2),
    "qwen2vl_merger": (46 * 46, 2),
    "qwen3vl_merger": (46 * 46, 2),
}


def _patches(header: ModelHeader, number: Callable[[str, int], int]) -> int:
    """The patches of one image; 0 if the file does not state its sizes."""
    keys = ("clip.projector_type", "clip.vision.projector_type")
    kind = next((value for key in keys if isinstance(value := header.keys.get(key), str)), "")
    if kind in _TOKENS:
        tokens, merge = _TOKENS[kind]
        merge = number("spatial_merge_size", number("projector.scale_factor", merge))
        return tokens * merge * merge
    side = number("image_size", 0) // number("patch_size", 14)
    if not side:
        return 0
    has_class = any(tensor.name == "v.class_embd" for tensor in header.tensors or ())
    return side * side + has_class if kind in _FIXED else max(side * side, PATCHES)


# The most tokens of one image, in any release: set_limit_image_tokens in clip.cpp. Gemma 3 has a fixed size.
_MOST_TOKENS = {
    "gemma3": 256,
    "gemma4v": 1120,
    "kimivl": 1024,
    "lfm2": 1024,
    "minimax_m3": 576,
    "pixtral": 1024,
}


def image_tokens(projector: ModelHeader | None) -> int:
    """The most tokens of the context that one image takes with this projector."""
    kind = None if projector is None else projector.keys.get("clip.projector_type")
    return _MOST_TOKENS.get(kind, MOST_IMAGE_TOKENS) if isinstance(kind, str) else MOST_IMAGE_TOKENS


def adapter_lines(
    headers: Iterable[ModelHeader], placement: TensorPlacement, tokens: int
) -> Iterator[MemoryLine]:
    """The lines of --lora. Each pair of matrices is in the pool of the tensor it changes; the compute buffer is an
    upper bound, as if all activations were alive at once.
    """
    sums: dict[Pool, int] = {}
    widest = 0
    for header in headers:
        if header.keys.get("general.type") != "adapter" or not header.tensors:
            raise UsageError(f"{header.name} is not an adapter (a GGUF of type adapter)")
        for tensor in header.tensors:
            widest = max(widest, *tensor.shape, 0)
            block = block_of(tensor.name)
            pool = placement.output
            if block is not None and block < len(placement.blocks):
                pool = placement.blocks[block]
            size = PlacedTensor(tensor=tensor, pool=pool, block=block).size_bytes
            sums[pool] = sums.get(pool, 0) + size
    for pool, size in sums.items():
        yield MemoryLine(
            component=Component.WEIGHTS,
            size_bytes=size,
            pool=pool,
            because="adapter matrices, loaded in addition to the tensors they change",
            part="adapter",
        )
    for pool in sums:
        yield MemoryLine(
            component=Component.COMPUTE,
            size_bytes=pad(FLOAT_BYTES * tokens * widest, 128),
            pool=pool,
            basis=Basis.MODELLED,
            because=f"{tokens} tokens x {widest} floats: upper bound for the widest adapter",
            within=ADAPTER_WITHIN,
            part="adapter",
        )
