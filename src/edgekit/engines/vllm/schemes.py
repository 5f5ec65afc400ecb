"""quantization_config -> how vLLM stores each matrix, and which matrices it does not quantise.

Parameters are those that the methods' create_weights allocates @ 0.32.0 (quantization/fp8.py, auto_gptq.py,
auto_awq.py, modelopt.py, mxfp4.py, compressed_tensors/schemes), before any repacking.

Configs name modules by their full names, parts of names, wildcards or regular expressions. Regular expressions from a
file are never executed: their syntax is stripped, and the rest is compared segment by segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgekit.bill.types import weakest
from edgekit.engines.vllm.models import vllm_model
from edgekit.errors import RefusedError
from edgekit.model.tensor_recipes import TensorRole
from edgekit.units import Basis

# Methods that need a quantised checkpoint.
NEEDS_CHECKPOINT = ("awq", "gptq", "compressed-tensors", "modelopt")
# quantization/__init__.py QUANTIZATION_METHODS, and other names of them in checkpoints.
METHODS = frozenset({
    "awq", "auto_awq", "awq_marlin", "fp8", "modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "gptq",
    "auto_gptq", "gptq_marlin", "humming", "compressed-tensors", "experts_int8", "quark", "moe_wna16", "torchao", "inc",
    "auto-round", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8",
})  # fmt: skip
DEPRECATED = frozenset({"fbgemm_fp8", "fp_quant"})
MIN_CAPABILITY: Mapping[str, tuple[int, int]] = {  # get_min_capability of each
    "awq": (7, 5),
    "gptq": (6, 0),
    "fp8": (7, 5),
    "modelopt": (7, 5),
    "compressed-tensors": (7, 0),
    "mxfp4": (8, 0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a matrix of (out, in) numbers is stored, and the parameters that come with it."""

    method: str
    weight_bits: int
    group: int = 0  # numbers of a row that share a scale; -1: the whole row, 0: no such scales
    scale_bytes: int | None = None  # size of a scale of a group; None: in the model's dtype
    zero_bits: int = 0  # size of the zero point of a group; 0: no zero points
    block: tuple[int, int] | None = None  # rows and columns that share an f32 scale
    # Further parameters:
    part_bytes: int = 0  # for each matrix of the checkpoint
    # For each matrix of the checkpoint, but only one for gate and up of an expert.
    input_bytes: int = 0
    linear_bytes: int = 0  # for each linear layer, which may consist of several fused matrices
    attention_bytes: int = 0  # for each attention layer
    attention_numbers: int = 0  # for each attention layer, in the model's dtype
    latent_numbers: int = 0  # for each latent attention layer, in the model's dtype
    expert_bytes: int = 0  # for each expert
    expert_biases: bool = False  # biases for every expert, even if the checkpoint has none
    experts_only: bool = False  # other matrices are not quantised
    basis: Basis = Basis.EXACT

    def matrix_bytes(self, out: int, into: int, dtype_bytes: int) -> int:
        """Bytes of a matrix with its scales. Raises RefusedError if a row is not a multiple of the group."""
        size = out * into * self.weight_bits // 8
        if self.group:
            group = into if self.group < 0 else self.group
            if into % group and self.method != "gptq":
                raise RefusedError(
                    f"a row of {into} numbers cannot be divided into groups of {group}: "
                    "tensor parallel size or group size is too large"
                )
            groups = out * (into // group)
            scale_bytes = dtype_bytes if self.scale_bytes is None else self.scale_bytes
            size += groups * scale_bytes + groups * self.zero_bits // 8
        if self.block is not None:
            rows, columns = self.block
            size += -(-out // rows) * -(-into // columns) * 4
        return size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchemePlan:
    """Which scheme each matrix gets."""

    # The first entry that lists a matrix applies; None lists all matrices.
    schemes: tuple[tuple[ListedModules | None, Scheme], ...]
    ignored: ListedModules  # modules that are not quantised
    online: bool = False  # the files have plain numbers, which vLLM quantises while loading

    @property
    def main(self) -> Scheme:
        """The first scheme, which decides the extra parameters of attention and of experts."""
        return self.schemes[0][1]

    @property
    def basis(self) -> Basis:
        """How certain the schemes are. If there are several, matrices are matched by name, which is MODELLED."""
        bases = [scheme.basis for _, scheme in self.schemes]
        return weakest(bases if len(bases) == 1 else [*bases, Basis.MODELLED])

    def scheme_for(self, role: TensorRole, layer: int | None) -> Scheme | None:
        """The scheme of a matrix; None if it is not quantised."""
        if self.ignored.covers(role, layer):
            return None
        for modules, scheme in self.schemes:
            if modules is None or modules.covers(role, layer):
                return scheme
        return None


_MODELOPT = Scheme(method="modelopt", weight_bits=16, attention_numbers=4, latent_numbers=4)
_COMPRESSED = Scheme(
    method="compressed-tensors", weight_bits=16, attention_bytes=12, attention_numbers=3
)


def read_plan(
    config: Mapping[str, Any], architecture: str, requested: str | None
) -> SchemePlan | None:
    """The schemes of a checkpoint; those of the method `requested` if its numbers are plain; None: not quantised.

    Raises RefusedError for a method that vLLM 0.32 does not have.
    """
    quantization = config.get("quantization_config")
    if not isinstance(quantization, Mapping) or not quantization:
        scheme = _online_scheme(requested)
        if scheme is None:
            return None
        return SchemePlan(
            schemes=((None, scheme),), ignored=ListedModules((), architecture), online=True
        )
    method = str(quantization.get("quant_method") or "").lower()
    if not method and quantization.get("quant_algo"):
        method = "modelopt"
    if not method and "bits" in quantization and "group_size" in quantization:
        raise RefusedError("vLLM does not load weights quantised by MLX")
    if method in DEPRECATED:
        raise RefusedError(f"vLLM 0.32 has deprecated the quantisation method {method!r}")
    if method not in METHODS:
        raise RefusedError(f"vLLM 0.32 does not support the quantisation method {method[:40]!r}")
    schemes = tuple(_read_schemes(method, quantization, architecture))
    nested = quantization.get("quantization")
    sections = (quantization, nested) if isinstance(nested, Mapping) else (quantization,)
    keys = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
    ignored = [
        name for section in sections for key in keys for name in _read_names(section.get(key))
    ]
    return SchemePlan(schemes=schemes, ignored=ListedModules(ignored, architecture))


def _read_names(value: object) -> list[str]:
    """The strings of a list; none if it is not a list."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _online_scheme(requested: str | None) -> Scheme | None:
    """The scheme of a plain checkpoint that vLLM quantises while loading; None: not quantised.

    Raises RefusedError for a method that cannot quantise while loading.
    """
    if requested is None:
        return None
    if requested.startswith("fp8"):
        return Scheme(method="fp8", weight_bits=8, part_bytes=4, basis=Basis.MODELLED)
    if requested not in METHODS:
        raise RefusedError(f"vLLM 0.32 does not support the quantisation method {requested[:40]!r}")
    if any(word in requested for word in NEEDS_CHECKPOINT):
        raise RefusedError(
            f"vLLM: {requested} needs a checkpoint quantised with it, which is not known here: "
            "give its repository or config.json"
        )
    return None


def _read_schemes(
    method: str, quantization: Mapping[str, Any], architecture: str
) -> Iterator[tuple[ListedModules | None, Scheme]]:
    """The schemes of a method, each with the modules that it applies to; None: all others.

    Raises RefusedError for a number of bits that vLLM has no kernel for.
    """
    if "awq" in method or "gptq" in method:
        is_gptq = "gptq" in method
        bits = quantization.get("bits") or quantization.get("w_bit")
        if not _is_size(bits) or bits not in {4, 8}:
            raise RefusedError(f"vLLM has no {method} kernel for {bits!r:.20} bits")
        size = quantization.get("group_size") or quantization.get("q_group_size")
        grouped = Scheme(
            method="gptq" if is_gptq else "awq",
            weight_bits=bits,
            group=size if isinstance(size, int) else 128,
            zero_bits=bits,
            expert_biases=is_gptq,
        )
        yield None, grouped
    elif method.startswith("modelopt") or method == "compressed-tensors":
        base = _MODELOPT if method.startswith("modelopt") else _COMPRESSED
        groups = quantization.get("config_groups")
        listed = list(groups.values()) if isinstance(groups, Mapping) else []
        listed = [group for group in listed if isinstance(group, Mapping)]
        for group in listed:
            names = _read_names(group.get("targets"))
            # a group that names a class ("Linear") applies to all other modules
            is_listed = names and all("." in name for name in names)
            modules = ListedModules(names, architecture) if is_listed else None
            yield modules, _group_scheme(base, quantization, group)
        if not listed:
            yield None, _algorithm_scheme(base, quantization)
    elif "mxfp4" in method:
        mxfp4 = Scheme(method="mxfp4", weight_bits=4, group=32, scale_bytes=1, experts_only=True)
        yield None, mxfp4
    elif "fp8" in method:
        fp8 = Scheme(method="fp8", weight_bits=8, attention_numbers=4)
        block = _read_pair(quantization.get("weight_block_size"))
        has_static_scales = quantization.get("activation_scheme") == "static"
        if block is not None:
            yield None, replace(fp8, block=block)
        else:
            yield None, replace(fp8, part_bytes=4, input_bytes=4 if has_static_scales else 0)
    else:
        yield None, Scheme(method=method, weight_bits=16, basis=Basis.ASSUMED)  # an upper bound


def _algorithm_scheme(base: Scheme, quantization: Mapping[str, Any]) -> Scheme:
    """The scheme of a config that names an algorithm (quant_algo) instead of describing groups of modules."""
    nested = quantization.get("quantization")
    inner = nested if isinstance(nested, Mapping) else quantization
    match str(inner.get("quant_algo") or quantization.get("quant_algo") or "").upper():
        case "NVFP4":
            return replace(base, weight_bits=4, group=16, scale_bytes=1, part_bytes=8)
        case "FP8":
            return replace(base, weight_bits=8, part_bytes=4, input_bytes=4)
        case "MXFP8":
            return replace(base, weight_bits=8, group=32, scale_bytes=1)
        case _:
            return replace(base, basis=Basis.ASSUMED)


def _group_scheme(
    base: Scheme, quantization: Mapping[str, Any], group: Mapping[str, Any]
) -> Scheme:
    """The scheme of one group of modules, as its config describes weights and activations."""
    weights, inputs = group.get("weights"), group.get("input_activations")
    bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
    if not isinstance(weights, Mapping) or not _is_size(bits) or bits not in {4, 8}:
        return replace(base, basis=Basis.ASSUMED)
    stated_size = weights.get("group_size")
    group_size = stated_size if isinstance(stated_size, int) and stated_size > 0 else None
    storage_format = str(group.get("format") or quantization.get("format"))
    if weights.get("type") == "int" and "pack" in storage_format:
        return replace(
            base,
            weight_bits=bits,
            group=group_size or -1,
            zero_bits=0 if weights.get("symmetric", True) else bits,
            linear_bytes=16,  # the shape before packing
            expert_bytes=8,
        )
    if bits == 4:  # NVFP4 in groups of 16 with a scale over all, MXFP4 in groups of 32
        is_mxfp4 = stated_size == 32
        return replace(
            base,
            weight_bits=4,
            scale_bytes=1,
            group=32 if is_mxfp4 else 16,
            part_bytes=0 if is_mxfp4 else 8,
        )
    has_static_scales = isinstance(inputs, Mapping) and inputs.get("dynamic") is False
    scaled = replace(base, weight_bits=8, input_bytes=4 if has_static_scales else 0)
    match weights.get("strategy"):
        case "channel":
            return replace(scaled, group=-1, scale_bytes=4)
        case "block":
            return replace(scaled, block=_read_pair(weights.get("block_structure")) or (128, 128))
        case "group" if group_size is not None:
            return replace(scaled, group=group_size)
        case _:
            return replace(scaled, part_bytes=4)


def _read_pair(value: Any) -> tuple[int, int] | None:
    """A list of two positive numbers as a tuple; None for anything else."""
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_size, value))
    return (value[0], value[1]) if is_pair else None


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


# How families call the module of a tensor, without the number of its layer.
# fmt: off
_MODULE_NAMES: Mapping[TensorRole, tuple[str, ...]] = {
    TensorRole.QUERY: ("self_attn.q_proj", "self_attn.qkv_proj", "mixer.q_proj"),
    TensorRole.KEY: ("self_attn.k_proj", "self_attn.qkv_proj", "mixer.k_proj"),
    TensorRole.VALUE: ("self_attn.v_proj", "self_attn.qkv_proj", "mixer.v_proj"),
    TensorRole.OUTPUT: ("self_attn.o_proj", "mixer.o_proj"),
    TensorRole.QUERY_DOWN: ("self_attn.q_a_proj", "self_attn.fused_qkv_a_proj"),
    TensorRole.QUERY_UP: ("self_attn.q_b_proj",),
    TensorRole.LATENT_DOWN: ("self_attn.kv_a_proj_with_mqa", "self_attn.fused_qkv_a_proj"),
    TensorRole.LATENT_UP: ("self_attn.kv_b_proj",),
    TensorRole.INDEX_QUERY: ("self_attn.indexer.wq_b", "self_attn.indexer.q_proj"),
    TensorRole.INDEX_KEY: ("self_attn.indexer.wk", "self_attn.indexer.k_proj"),
    TensorRole.INDEX_WEIGHTS: ("self_attn.indexer.weights_proj",),
    TensorRole.GATE: ("mlp.gate_proj", "mlp.gate_up_proj", "feed_forward.gate_proj"),
    TensorRole.UP: ("mlp.up_proj", "mlp.gate_up_proj", "feed_forward.up_proj", "mixer.up_proj"),
    TensorRole.DOWN: ("mlp.down_proj", "feed_forward.down_proj", "mixer.down_proj"),
    TensorRole.EXPERT_GATE: ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts"),
    TensorRole.EXPERT_UP: ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts", "mixer.experts"),
    TensorRole.EXPERT_DOWN: ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts", "mixer.experts"),
    TensorRole.SHARED_GATE: ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj",
                             "feed_forward.shared_expert.gate_proj"),
    TensorRole.SHARED_UP: ("mlp.shared_experts.up_proj", "mlp.shared_expert.up_proj",
                           "feed_forward.shared_expert.up_proj", "mixer.shared_experts.up_proj"),
    TensorRole.SHARED_DOWN: ("mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj",
                             "feed_forward.shared_expert.down_proj", "mixer.shared_experts.down_proj"),
    TensorRole.ROUTER: ("mlp.gate", "mlp.router", "block_sparse_moe.gate", "feed_forward.router", "mixer.gate"),
    TensorRole.STATE_IN: ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz", "mamba.in_proj", "mixer.in_proj",
                          "conv.in_proj"),
    TensorRole.STATE_GATE: ("linear_attn.in_proj_z", "linear_attn.in_proj_qkvz"),
    TensorRole.STATE_BETA: ("linear_attn.in_proj_ba", "linear_attn.in_proj_b", "linear_attn.in_proj_a"),
    TensorRole.STATE_OUT: ("linear_attn.out_proj", "mamba.out_proj", "mixer.out_proj", "conv.out_proj"),
}
# fmt: on
_EXPERTS_OUTSIDE_MLP = dict.fromkeys(
    (TensorRole.EXPERT_GATE, TensorRole.EXPERT_UP, TensorRole.EXPERT_DOWN), ("experts",)
)
MOST_PATTERNS = 20_000  # real lists have a few thousand: some modules of every layer


class ListedModules:
    """The modules that a list of patterns in a config names, as roles of tensors in each layer."""

    def __init__(self, patterns: Sequence[str], architecture: str) -> None:
        module_names = dict(_MODULE_NAMES)
        if vllm_model(architecture).experts_outside_mlp:
            module_names |= _EXPERTS_OUTSIDE_MLP
        roles_by_module: dict[str, set[TensorRole]] = {}
        self._roles: dict[int | None, set[TensorRole]] = {}  # by layer; None: in every layer
        for pattern in patterns[:MOST_PATTERNS]:
            layer, module = _parse_pattern(pattern)
            if module not in roles_by_module:
                roles_by_module[module] = {
                    role
                    for role, names in module_names.items()
                    # "experts" names part of "mlp.experts", but not of "mlp.shared_experts"
                    if module and any(f".{module}." in f".{name}." for name in names)
                }
            self._roles.setdefault(layer, set()).update(roles_by_module[module])

    def covers(self, role: TensorRole, layer: int | None) -> bool:
        """Whether the list names the module of this tensor, in this layer or in every layer."""
        return role in self._roles.get(None, ()) or role in self._roles.get(layer, ())


def _parse_pattern(pattern: str) -> tuple[int | None, str]:
    """The layer and the module that a pattern names: "model.layers.3.mlp.gate" -> (3, "mlp.gate").

    The layer is None if the pattern has no number: "lm_head" -> (None, "lm_head").
    """
    text = pattern.removeprefix("re:").replace("\\", "").replace(".*", "*").replace("d+", "*")
    text = text.strip("^$*.()")
    _, separator, after_layers = text.rpartition("layers.")
    if not separator:
        return None, text
    number, _, module = after_layers.partition(".")
    layer = int(number) if number.isdecimal() and len(number) < 6 else None
    return layer, module.strip("*.")
