"""Quantised weights: the settings in config.json, and the number of weights in packed tensors.

Writers differ: MLX has `quantization` and a copy in `quantization_config`, transformers a
`quant_method`, ModelOpt a `quant_algo` in its own hf_quant_config.json, GPTQ and AWQ tools a file of
settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from edgekit.formats.types import TEXT_SECTIONS, Quantization, Tensor

_Number = TypeVar("_Number", int, float)

_MLX_SETTINGS = frozenset({"bits", "group_size", "mode"})

# Modes of MLX that fix the bits and the group size; its default mode, affine, does not.
_FIXED_MODES: Mapping[str, tuple[int, int]] = {
    "mxfp4": (4, 32),
    "nvfp4": (4, 16),
    "mxfp8": (8, 32),
}

# Methods and algorithms whose name determines the bits.
_BITS_OF: Mapping[str, int] = {
    "fp8": 8,
    "fbgemm_fp8": 8,
    "eetq": 8,
    "mxfp4": 4,
    "nvfp4": 4,
    "mxfp8": 8,
    "bitnet": 2,  # 1.58, stored as two
    "w4a16_nvfp4": 4,
    "w4a16_awq": 4,
    "w4a8_awq": 4,
    "int4_awq": 4,
    "w8a16": 8,
    "w8a8_sq_per_channel": 8,
    "fp8_pb_wo": 8,
    "fp4": 4,
    "int4": 4,
    "uint4": 4,
    "int8": 8,
    "fp8_e4m3": 8,
}
_GROUP_OF: Mapping[str, int] = {"mxfp4": 32, "nvfp4": 16, "mxfp8": 32}


def mlx_bits_per_weight(bits: int) -> float:
    """4.5 for "4bit": by default MLX stores a scale and a bias, of 16 bits each, for every 64 weights."""
    return bits + 2 * 16 / 64


def read_quantization(
    config: Mapping[str, Any], extra: Mapping[str, Any] | None = None
) -> Quantization | None:
    """The quantisation; None if weights are plain numbers. `extra`: hf_quant_config.json or quantize_config.json."""
    for part in _parts(config):
        for key in ("quantization", "quantization_config", "compression_config"):
            settings = part.get(key)
            if isinstance(settings, dict) and settings:
                return _read_settings(settings)
    return _read_extra(extra) if extra else None


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config, and the configs of language models nested in it, up to two levels deep."""
    yield config
    for name in TEXT_SECTIONS:
        inner = config.get(name)
        if isinstance(inner, dict):
            yield inner
            deeper = inner.get("text_config")
            if isinstance(deeper, dict):
                yield deeper


def _read_settings(settings: Mapping[str, Any]) -> Quantization:
    """The quantisation that an object inside config.json describes, by MLX or another method."""
    method = _text(settings, "quant_method")
    algorithm = _text(settings, "quant_algo")
    is_unnamed = method is None and algorithm is None
    if (method or "").lower() == "mlx" or (is_unnamed and not _MLX_SETTINGS.isdisjoint(settings)):
        mode = _text(settings, "mode") or "affine"
        bits, group_size = _FIXED_MODES.get(mode, (None, None))
        return Quantization(
            method=mode,
            bits=_number(settings, "bits") or bits,
            group_size=_group_size(settings) or group_size,
            overrides=_overrides(settings),
            mlx=True,
        )
    if method is None:
        method = "modelopt" if algorithm else "unknown"
    return _read_method(method, algorithm, settings)


def _overrides(settings: Any) -> tuple[tuple[str, Mapping[str, Any] | bool], ...]:
    """Modules with different settings, by path."""
    if not isinstance(settings, dict):
        return ()
    return tuple(
        (path, setting)
        for path, setting in settings.items()
        if path not in _MLX_SETTINGS and isinstance(setting, (dict, bool))
    )


def _read_method(method: str, algorithm: str | None, settings: Mapping[str, Any]) -> Quantization:
    """The quantisation by a method other than MLX's."""
    # compressed-tensors and ModelOpt describe the weights of each group of modules, Quark those of the whole model.
    by_group = [group.get("weights") for group in _objects(settings.get("config_groups"))]
    global_config = settings.get("global_quant_config")
    of_model = global_config.get("weight") if isinstance(global_config, dict) else None
    weights = list(_objects([*by_group, of_model]))
    dtype = _text(weights[0], "dtype") if weights else None
    names = [name.lower() for name in (algorithm, dtype, method) if name]
    bits: float | None = None
    if not _varies(settings, "bits"):
        stated_bits = _stated_bits(settings) or _common_value(
            _number(weight, "num_bits") for weight in weights
        )
        bits = stated_bits or _first_known(names, _BITS_OF)
    group_size = None
    if not _varies(settings, "group_size"):
        stated_size = _group_size(settings) or _common_value(map(_group_size, weights))
        group_size = stated_size or _first_known(names, _GROUP_OF)
    return Quantization(
        method=method,
        format=algorithm or dtype or _text(settings, "format") or _text(settings, "fmt"),
        bits=bits,
        group_size=group_size,
        overrides=_overrides(settings.get("quantized_layers")),
    )


def _varies(settings: Mapping[str, Any], key: str) -> bool:
    """Whether some modules have another value of this setting: GPTQModel's `dynamic` rules match them by name."""
    return any(key in rule for rule in _objects(settings.get("dynamic")))


def _first_known(names: list[str], table: Mapping[str, int]) -> int | None:
    """The value of the first known name; None for a mixture of algorithms."""
    if "mixed_precision" in names:
        return None
    return next((table[name] for name in names if name in table), None)


def _stated_bits(settings: Mapping[str, Any]) -> float | None:
    """The bits per weight by bitsandbytes' flags, else by the keys of the other methods."""
    for flag, bits in (("load_in_4bit", 4), ("load_in_8bit", 8)):
        if settings.get(flag) is True or settings.get(f"_{flag}") is True:
            return bits
    return _number(settings, "bits") or _number(settings, "w_bit") or _number(settings, "nbits")


def _objects(values: Any) -> Iterator[Mapping[str, Any]]:
    """The objects among the values of a list or an object."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list):
        yield from (value for value in values if isinstance(value, dict))


def _common_value(values: Iterable[_Number | None]) -> _Number | None:
    """The value that all of them have; None if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _read_extra(extra: Mapping[str, Any]) -> Quantization | None:
    """The file that a quantiser writes next to config.json."""
    inner = extra.get("quantization")
    if isinstance(inner, dict) and "quant_algo" in inner:
        return _read_method("modelopt", _text(inner, "quant_algo"), inner)
    method = _text(extra, "quant_method")
    if method is None and "w_bit" in extra:
        method = "awq"
    if method is None and "bits" in extra:
        method = "gptq"
    return _read_method(method, None, extra) if method else None


def _text(settings: Mapping[str, Any], key: str) -> str | None:
    """The string under this key; None if it is empty or not a string."""
    value = settings.get(key)
    return value if isinstance(value, str) and value else None


def _number(settings: Mapping[str, Any], key: str) -> float | None:
    """The number of bits under this key, which may be a fraction; None if it is implausible."""
    value = settings.get(key)
    if (whole := whole_bits(value)) is not None:
        return whole
    if isinstance(value, bool) or not isinstance(value, float):
        return None
    return value if 0 < value <= 64 else None


def whole_bits(value: Any) -> int | None:
    """4, 4.0 and "4" are four bits; True is not a number."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 3:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 64:
        return None
    return int(value) if value == int(value) else None


def _group_size(settings: Mapping[str, Any]) -> int | None:
    """The group size; None for -1, which means a whole row."""
    for key in ("group_size", "q_group_size"):
        value = settings.get(key)
        if type(value) is int and value > 0:
            return value
    return None


# Tensors that belong to a packed weight, such as its scales: (end of the name, ends of the weight's name). Without
# that weight in the file, such a tensor is a parameter like any other.
_COMPANIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (".scales", (".weight", ".qweight")),  # .weight: MLX; .qweight: GPTQ and AWQ
    (".biases", (".weight",)),  # MLX
    (".qzeros", (".qweight",)),
    (".g_idx", (".qweight",)),
    ("_scales", ("_blocks",)),  # gpt-oss
    ("_scales", ("",)),  # EETQ: weight_scales
    ("_scale", ("", "_packed")),  # fp8, ModelOpt, compressed-tensors: weight_scale
    ("_scale_2", ("",)),
    ("_scale_inv", ("",)),
    ("_global_scale", ("", "_packed")),
    ("_zero_point", ("", "_packed")),
    ("_shape", ("_packed",)),
    ("_g_idx", ("_packed",)),
    (".scale", (".weight",)),  # DeepSeek's own names
    (".input_scale", (".weight",)),
    (".input_global_scale", (".weight", ".weight_packed")),
    (".input_scale_ub", (".weight",)),
    (".output_scale", (".weight", ".weight_packed")),
    (".pre_quant_scale", (".weight",)),
    (".activation_scale", (".weight",)),
    (".SCB", (".weight",)),  # bitsandbytes, 8 bits
    (".weight_format", (".weight",)),
    (".absmax", ("",)),  # bitsandbytes, 4 bits
    (".quant_map", ("",)),
    (".nested_absmax", ("",)),
    (".nested_quant_map", ("",)),
    (".quant_state.bitsandbytes__nf4", ("",)),
    (".quant_state.bitsandbytes__fp4", ("",)),
)
_CACHE_SCALES = (".q_scale", ".k_scale", ".v_scale")  # of the KV cache, not of a weight

_ENDS = tuple(end for end, _ in _COMPANIONS) + _CACHE_SCALES

# (tensor type, method) -> bits per weight of methods that pack weights into bytes.
_BITS_IN_A_BYTE: Mapping[tuple[str, str], int] = {
    ("U8", "bitnet"): 2,
    ("U8", "bitsandbytes"): 4,
    ("U8", "compressed-tensors"): 4,
    ("U8", "fp8"): 4,  # experts in NVFP4 next to fp8 tensors
    ("I8", "fp8"): 4,  # experts in MXFP4 (transformers, integrations/deepgemm.py)
    ("U8", "fp_quant"): 4,
    ("U8", "modelopt"): 4,
    ("U8", "mxfp4"): 4,
    ("U8", "nvfp4"): 4,
    ("U8", "quark"): 4,
}


# Methods whose packing is known.
_KNOWN_METHODS = frozenset(
    {
        "affine",
        "auto-round",
        "awq",
        "bitnet",
        "bitsandbytes",
        "compressed-tensors",
        "eetq",
        "fbgemm_fp8",
        "fp8",
        "fp_quant",
        "gptq",
        "modelopt",
        "mxfp4",
        "mxfp8",
        "nvfp4",
        "quark",
        "torchao",
    }
)
_WHOLE_NUMBERS = frozenset({"U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})


def count_weights(tensors: Iterable[Tensor], quantization: Quantization | None) -> int | None:
    """The number of weights of a model, packed ones unpacked, without scales.

    `quantization` None: nothing is packed. Returns None if the packing of a tensor is not known.
    """
    if quantization is None:
        return sum(tensor.elements for tensor in tensors)
    by_name = {tensor.name: tensor for tensor in tensors}
    overrides = dict(quantization.overrides)
    counts = [
        _count_unpacked(tensor, quantization, overrides, by_name)
        for tensor in by_name.values()
        if not is_companion(tensor.name, by_name)
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def is_companion(name: str, names: Collection[str]) -> bool:
    """Whether a tensor is only needed to unpack another one of `names`."""
    if not name.endswith(_ENDS):
        return False
    return name.endswith(_CACHE_SCALES) or any(
        name.endswith(end)
        and any(name.removesuffix(end) + weight_end in names for weight_end in weight_ends)
        for end, weight_ends in _COMPANIONS
    )


def _count_unpacked(
    tensor: Tensor,
    quantization: Quantization,
    overrides: Mapping[str, Mapping[str, Any] | bool],
    by_name: Mapping[str, Tensor],
) -> int | None:
    """The number of weights in one tensor; None if the packing is not known."""
    kind = tensor.type.name
    if kind not in _WHOLE_NUMBERS:
        return tensor.elements
    if quantization.method not in _KNOWN_METHODS:
        return None
    module, _, last = tensor.name.rpartition(".")
    if kind in {"U32", "I32"} and last in {"weight", "qweight", "weight_packed"}:
        setting = overrides.get(module)
        override = setting if isinstance(setting, dict) else {}
        bits = whole_bits(override.get("bits", quantization.bits))
        if bits is not None and bits <= 32:
            return tensor.size_bytes * 8 // bits
        # Count from the scales: each group of weights has one.
        scales = by_name.get(f"{module}.scales") or by_name.get(f"{module}.weight_scale")
        if scales is None or quantization.group_size is None or quantization.mlx:
            return None
        return scales.elements * quantization.group_size
    in_a_byte = _BITS_IN_A_BYTE.get((kind, quantization.method))
    return tensor.elements if in_a_byte is None else tensor.size_bytes * 8 // in_a_byte
