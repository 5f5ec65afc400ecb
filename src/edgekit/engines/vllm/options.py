"""Flags, GPU and model -> the options that vLLM resolves at startup, or the reason why it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgekit.bill.types import Load
from edgekit.engines.vllm import caches as cache_dtypes
from edgekit.engines.vllm.blocks import (
    AttentionBackend,
    AttentionNeeds,
    bytes_per_block,
    choose_backend,
    group_members,
    with_block_sizes,
)
from edgekit.engines.vllm.caches import Storage, boundary_layers, cache_members
from edgekit.engines.vllm.expected import stages
from edgekit.engines.vllm.models import cached_attention_of, section_of, vllm_model
from edgekit.engines.vllm.prepared import prepare
from edgekit.engines.vllm.types import DTYPE_BYTES, ResolvedVllm, VllmSetup
from edgekit.errors import RefusedError, UsageError
from edgekit.model.types import (
    Attention,
    Cell,
    HybridLayer,
    LatentAttention,
    Model,
    Recurrent,
    Span,
)
from edgekit.units import GIB

UNLIMITED_TOKENS = 2**31  # a length of requests that never limits a step
DEFAULT_LENGTH = 2048  # if config.json states no context length
_SHARED_NAMES = {"f16": "float16", "bf16": "bfloat16", "fp8": "fp8"}
_DTYPES = {"half": "float16", "float": "float32", **{name: name for name in DTYPE_BYTES}}


def resolve(model: Model, setup: VllmSetup, max_model_len: int) -> ResolvedVllm:
    """The options for requests of up to `max_model_len` tokens.

    Raises RefusedError if vLLM would not start, UsageError for invalid flags.
    """
    resolved = prepare(model).resolved.get(setup, lambda: _resolve(model, setup))
    batched, seqs = batch_limits(setup, max_model_len)
    return replace(
        resolved,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        in_flight_tokens=batched * _batches_in_flight(setup),
    )


def _resolve(model: Model, setup: VllmSetup) -> ResolvedVllm:
    """The options for requests that are long enough not to limit the tokens of a step.

    Everything else in them is the same for requests of any length, so it is computed once.
    """
    _check_setup(model, setup)
    storage = resolve_storage(model, setup)
    check_layers(model, storage.cache_dtype)
    backends = _backends(model, setup, storage)
    members = cache_members(model, storage)
    block_size, members = with_block_sizes(members, backends, setup.block_size, storage)
    groups = group_members(members, hybrid_manager=not setup.disable_hybrid_kv_cache_manager)
    all_stages = stages(len(model.geometry.layers), setup.pipeline_parallel_size)
    batched, seqs = batch_limits(setup, UNLIMITED_TOKENS)
    return ResolvedVllm(
        dtype=storage.dtype,
        cache_dtype=storage.cache_dtype,
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        in_flight_tokens=batched * _batches_in_flight(setup),
        prefix_caching=storage.prefix_caching,
        backends=tuple(dict.fromkeys(backend.name for backend in backends)),
        groups=groups,
        bytes_per_block=max(bytes_per_block(groups, stage) for stage in all_stages),
    )


def with_load(setup: VllmSetup, load: Load) -> VllmSetup:
    """The setup with the load's batch and cache type, unless flags give them. Raises UsageError or RefusedError."""
    if not 0 < setup.gpu_memory_utilization <= 1:
        raise UsageError(
            f"gpu_memory_utilization must be between 0 and 1 (got {setup.gpu_memory_utilization})"
        )
    changes: dict[str, Any] = {}
    if load.batch_tokens is not None and setup.max_num_batched_tokens is None:
        changes["max_num_batched_tokens"] = load.batch_tokens
    if load.cache_k is not None and setup.kv_cache_dtype == "auto":
        if load.cache_v is not None and load.cache_v != load.cache_k:
            raise RefusedError("vLLM uses one dtype for both keys and values")
        name = _SHARED_NAMES.get(load.cache_k.name, load.cache_k.name)
        cache_dtypes.check_name(name)
        changes["kv_cache_dtype"] = name
    return replace(setup, **changes) if changes else setup


def resolve_length(model: Model, load: Load) -> int:
    """The value of max_model_len: the context of the load, else the model's own.

    config/model.py _get_and_verify_max_len. Raises UsageError or RefusedError if the model does not have that context.
    """
    geometry = model.geometry
    model_context = max(geometry.trained_context or 0, geometry.native_context or 0)
    tokens = load.context_tokens
    if tokens is None:
        rope = geometry.rope
        if rope is not None and rope.type == "longrope" and rope.original_context:
            return rope.original_context
        return model_context or DEFAULT_LENGTH
    if tokens < 1:
        raise UsageError(f"max_model_len must be at least 1 (got {tokens})")
    stated = section_of(model).get("model_max_length")
    stated_length = stated if isinstance(stated, int) and not isinstance(stated, bool) else 0
    longest = max(model_context, stated_length)
    if model_context and tokens > longest:
        raise RefusedError(
            f"max_model_len {tokens:,} is longer than the model's context of {longest:,} tokens"
        )
    return tokens


def _check_setup(model: Model, setup: VllmSetup) -> None:
    """Raises UsageError for invalid numbers and names, RefusedError for ranks that cannot share the model."""
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "block_size", "max_num_seqs"):
        value = getattr(setup, name)
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1 (got {value})")
    if setup.max_num_batched_tokens is not None and setup.max_num_batched_tokens < 1:
        raise UsageError(f"max_num_batched_tokens is {setup.max_num_batched_tokens}")
    cache_dtypes.check_name(setup.kv_cache_dtype)
    for name in ("mamba_cache_dtype", "mamba_ssm_cache_dtype"):
        if getattr(setup, name) not in {"auto", *DTYPE_BYTES}:
            raise UsageError(
                f"{name} must be auto, {', '.join(DTYPE_BYTES)} (got {getattr(setup, name)!r})"
            )
    ranks = setup.tensor_parallel_size  # config/model.py verify_with_parallel_config
    attentions = (cached_attention_of(layer.mixer) for layer in model.geometry.layers)
    heads = next((attention.heads for attention in attentions if attention is not None), 0)
    if heads % ranks:
        raise RefusedError(
            f"{heads} attention heads are not divisible by tensor parallel size {ranks}"
        )
    if setup.pipeline_parallel_size > len(model.geometry.layers):
        raise RefusedError(
            f"{len(model.geometry.layers)} layers cannot be split into "
            f"{setup.pipeline_parallel_size} pipeline stages"
        )


def check_layers(model: Model, cache_dtype: str) -> None:
    """Raises RefusedError for combinations of layers that vLLM's model code does not support."""
    mixers = [layer.mixer for layer in model.geometry.layers]
    spans = {kind.span for mixer in mixers if (kind := cached_attention_of(mixer)) is not None}
    if vllm_model(model.geometry.architecture).all_windows_or_none and len(spans) > 1:
        raise RefusedError(
            "vLLM runs this model with a sliding window either in all layers or in none"
        )
    quantization = model.header.config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    if cache_dtype == "fp8_e5m2" and method == "fp8":
        raise RefusedError("an fp8 checkpoint does not work with an fp8_e5m2 cache")
    has_hybrid = any(isinstance(mixer, HybridLayer) for mixer in mixers)
    if cache_dtype.startswith("turboquant_") and has_hybrid:
        raise RefusedError("TurboQuant needs attention-only layers, and this model has none")


def resolve_storage(model: Model, setup: VllmSetup) -> Storage:
    """The dtypes of caches and states that vLLM chooses for the flags, the GPU and the checkpoint."""
    dtype, facts = resolve_dtype(model, setup), vllm_model(model.geometry.architecture)
    mixers = [layer.mixer for layer in model.geometry.layers]
    is_blackwell = setup.gpu.major == 10
    cache_dtype = setup.kv_cache_dtype
    if cache_dtype == "auto":
        cache_dtype = cache_dtypes.resolve_auto(model.header.config, latent=facts.keeps_latent)
    if facts.ignores_cache_dtype:
        cache_dtype = "auto"
    elif cache_dtype == "auto" and is_blackwell and facts.fp8_cache_on_blackwell:
        cache_dtype = "fp8_e4m3"
    conv_dtype = dtype if setup.mamba_cache_dtype == "auto" else setup.mamba_cache_dtype
    state_dtype = setup.mamba_ssm_cache_dtype
    if state_dtype == "auto":
        state_dtype = facts.state_dtype
        configured = section_of(model).get(facts.state_dtype_key)
        if isinstance(configured, str) and configured in DTYPE_BYTES:
            state_dtype = configured
    if state_dtype == "auto":  # mamba_utils.py kda_state_dtype
        cells = {mixer.cell for mixer in mixers if isinstance(mixer, Recurrent)}
        state_dtype = "float32" if Cell.KIMI_DELTA in cells else conv_dtype
    prefix_caching = setup.enable_prefix_caching
    if prefix_caching is None:  # off in models with recurrences only (is_prefix_caching_supported)
        has_states = any(mixer.states for mixer in mixers)
        has_attention = any(cached_attention_of(mixer) is not None for mixer in mixers)
        prefix_caching = has_attention or not has_states
    skipped_layers: frozenset[int] = frozenset()
    if cache_dtype.startswith("turboquant_"):
        skipped_layers = boundary_layers(model)
    return Storage(
        dtype=dtype,
        cache_dtype=cache_dtype,
        tensor_parallel_size=setup.tensor_parallel_size,
        conv_dtype=conv_dtype,
        state_dtype=state_dtype,
        prefix_caching=prefix_caching,
        skipped_layers=skipped_layers,
        sparse=any(isinstance(mixer, LatentAttention) and mixer.index_dim for mixer in mixers),
        blackwell=is_blackwell,
    )


def resolve_dtype(model: Model, setup: VllmSetup) -> str:
    """The dtype of the model: the one in the flags or the config, unless that is float32 or the GPU lacks it.

    bfloat16 needs Ampere, and a few models cannot run in float16 (config/model.py _get_and_verify_dtype).
    """
    supported = ["float16", "float32"]
    if setup.gpu.capability >= (8, 0):
        supported.insert(0, "bfloat16")
    if vllm_model(model.geometry.architecture).unstable_in_float16:
        supported.remove("float16")
    if setup.dtype != "auto":
        dtype = _DTYPES.get(setup.dtype)
        if dtype is None:
            raise UsageError(f"dtype {setup.dtype!r} is not one of auto, {', '.join(_DTYPES)}")
        if dtype not in supported:
            raise RefusedError(f"{setup.gpu.name or 'this GPU'} cannot run this model in {dtype}")
        return dtype
    sections = (model.header.config, section_of(model))
    values = (section.get(key) for section in sections for key in ("dtype", "torch_dtype"))
    names = (str(value or "").removeprefix("torch.") for value in values)
    configured = next((_DTYPES[name] for name in names if name in _DTYPES), "float32")
    return configured if configured in supported and configured != "float32" else supported[0]


def _backends(model: Model, setup: VllmSetup, storage: Storage) -> tuple[AttentionBackend, ...]:
    """The backends of the layers, each once, in the order of the layers."""
    facts = vllm_model(model.geometry.architecture)
    attentions = [
        (layer.index, attention)
        for layer in model.geometry.layers
        if (attention := cached_attention_of(layer.mixer)) is not None
    ]
    widths = (attention.key_dim for _, attention in attentions if isinstance(attention, Attention))
    is_bidirectional = (
        section_of(model).get("use_bidirectional_attention") == "vision"
        # recorded for the type of the whole model, which may differ from that of its text section
        or vllm_model(str(model.header.config.get("model_type"))).pictures_see_each_other
    )
    base = AttentionNeeds(
        capability=setup.gpu.capability,
        dtype=storage.dtype,
        cache_dtype=storage.cache_dtype,
        head_dim=0,
        model_head_dim=max(widths, default=0),
        block_size=setup.block_size,
        sinks=facts.sinks,
        softcap=bool(section_of(model).get("attn_logit_softcapping")),
        bidirectional=bool(model.geometry.towers) and is_bidirectional,
        sparse=storage.sparse,
        flashinfer=setup.flashinfer,
    )
    distinct_needs: dict[tuple[AttentionNeeds, bool], None] = {}
    for index, attention in attentions:
        latent, head_dim = False, attention.key_dim
        if facts.keeps_latent and isinstance(attention, LatentAttention):
            latent, head_dim = True, attention.latent_dim + attention.rope_dim
        needs = replace(
            base,
            head_dim=head_dim,
            sliding=attention.span is Span.WINDOW,
            cache_dtype="auto" if index in storage.skipped_layers else storage.cache_dtype,
        )
        distinct_needs[needs, latent] = None
    backends = [choose_backend(needs, latent=latent) for needs, latent in distinct_needs]
    if storage.sparse:
        backends.append(AttentionBackend(name="DEEPSEEK_V32_INDEXER", unit=64))  # mla/indexer.py
    return tuple(dict.fromkeys(backends))


def batch_limits(setup: VllmSetup, max_model_len: int) -> tuple[int, int]:
    """Maximum tokens and sequences of one step (arg_utils.py get_batch_defaults for the API server)."""
    tokens, seqs = 2048, 256
    memory = setup.gpu.total_bytes or setup.gpu.memory_bytes or 0
    if memory >= 160 * GIB:
        tokens, seqs = 16_384, 1024
    elif memory >= 70 * GIB and "a100" not in setup.gpu.name.lower():
        tokens, seqs = 8192, 1024
    seqs = setup.max_num_seqs or seqs
    if setup.max_num_batched_tokens is not None:
        tokens = setup.max_num_batched_tokens
    else:
        tokens = min(tokens, seqs * max_model_len)
    if setup.max_num_seqs is None:
        seqs = min(seqs, tokens)
    return tokens, seqs


def _batches_in_flight(setup: VllmSetup) -> int:
    """config/vllm.py max_concurrent_batches: one per pipeline stage, and one more with asynchronous scheduling."""
    return setup.pipeline_parallel_size + setup.async_scheduling
