"""Hyper-parameters from a header's keys or its config.json, found by name and checked as they are read.

There are two readers with one set of checks. `GgufKeys` reads the keys of a GGUF by their own names
("attention.head_count"), for engines that follow llama.cpp. `Hyper` reads any header by our names ("heads"), however a
GGUF or a config.json spells them: see hyperparameters.tsv.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import get_data  # importlib.resources takes 5 ms to import
from typing import NamedTuple, TypeVar

from edgekit.errors import HeaderError, HeaderLimitError, UnknownArchitectureError, quoted
from edgekit.formats.types import TEXT_SECTIONS, ModelHeader, Value
from edgekit.sources.types import Container

# Far above the largest real model, and still cheap to hold and to loop over.
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS; the deepest real model has 126 (Llama 3.1 405B)
MAX_NUMBER = 2**32 - 1  # the largest uint32 of a GGUF; every real width is far smaller
LAYER_COUNTS = frozenset({"layers", "mtp_layers", "loops"})  # their limit is MAX_LAYERS

T = TypeVar("T")

SUPER_ARCHITECTURE = "llama"  # its keys are used if a file lacks those of its own architecture


def whole_number(
    key: str, value: object, *, file: str, least: int = 0, most: int = MAX_NUMBER
) -> int:
    """The value of `key` as an int from `least` to `most`. Raises HeaderError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise HeaderError(f"{key} is {quoted(value)}, not a whole number", file=file)
    if value < least:
        raise HeaderError(f"{key} is {quoted(value)}, but must be at least {least}", file=file)
    if value > most:
        raise HeaderLimitError(key, value=value, limit=most, file=file)
    return int(value)


def single_item(key: str, value: object, *, file: str) -> object:
    """The value itself, or the item of a per-layer list of equal items."""
    if not isinstance(value, (list, tuple)):
        return value
    if len(set(map(repr, value))) != 1:
        raise HeaderError(f"{key} is a list, but must be a single number", file=file)
    return value[0]


def first_layers(key: str, items: tuple[T, ...], layers: int, *, file: str) -> tuple[T, ...]:
    """The items of the first `layers` layers. Raises HeaderError if the list is too short."""
    if len(items) < layers:
        raise HeaderError(f"{key} lists {len(items)} layers, but the model has {layers}", file=file)
    return items[:layers]


@dataclass(frozen=True, slots=True)
class GgufKeys:
    """The keys of a GGUF under its architecture's prefix, each checked when it is read. Raises HeaderError.

        keys = GgufKeys(header.keys, "qwen3", header.name)
        keys.whole("block_count", least=1, most=512)
        keys.whole("attention.head_count_kv", default=32, layer=0)
        keys.per_layer("feed_forward_length", layers=36)
        keys.number("rope.freq_base", default=10_000.0)
        keys.flag("attention.causal", default=True)

    A key without a default is required. A subclass may override `missing`, which creates the error for a missing key.
    """

    all_keys: Mapping[str, Value]
    architecture: str
    file: str

    def name(self, key: str) -> str:
        """The key as the file spells it."""
        return f"{self.architecture}.{key}"

    def get(self, key: str) -> Value | None:
        """The value, of any type; None if the file does not have it."""
        return self.all_keys.get(self.name(key))

    def whole(
        self,
        key: str,
        *,
        default: int | None = None,
        least: int = 0,
        most: int = MAX_NUMBER,
        layer: int | None = None,
    ) -> int:
        """A whole number from `least` to `most`.

        In a per-layer list it is the number of `layer`; if that is None, all layers must have the same number.
        """
        value: object = self.get(key)
        if isinstance(value, tuple) and layer is not None:
            value = value[layer] if layer < len(value) else None
        value = single_item(self.name(key), value, file=self.file)
        if value is None:
            return self._default(key, default)
        return whole_number(self.name(key), value, file=self.file, least=least, most=most)

    def per_layer(
        self, key: str, layers: int, *, default: int | tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """A number for every layer, from a list or from one number. Flags count as 0 and 1."""
        value: object = self.get(key)
        if value is None:
            value = self._default(key, default)
        items = value if isinstance(value, tuple) else (value,) * layers
        return tuple(
            int(item)
            if isinstance(item, bool)
            else whole_number(self.name(key), item, file=self.file)
            for item in first_layers(self.name(key), items, layers, file=self.file)
        )

    def number(self, key: str, *, default: float | None = None) -> float:
        """A finite number that is not negative."""
        value = self.get(key)
        if value is None:
            return self._default(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(f"{self.name(key)} is {quoted(value)}, but must be a number")
        if not math.isfinite(value) or value < 0:
            raise self.error(
                f"{self.name(key)} is {value}, but must be a finite number of at least 0"
            )
        return float(value)

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        value = self.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{self.name(key)} is {quoted(value)}, but must be true or false")
        return value

    def _default(self, key: str, default: T | None) -> T:
        """The default. Raises if there is none, because the key is then required."""
        if default is None:
            raise self.missing(key)
        return default

    def error(self, what: str) -> HeaderError:
        return HeaderError(what, file=self.file)

    def missing(self, key: str) -> HeaderError:
        return self.error(f"key {self.name(key)} is missing")


class Hyper:
    """Hyper-parameters by our names (the first column of hyperparameters.tsv), from GGUF keys or a config.json."""

    def __init__(self, header: ModelHeader) -> None:
        self.header = header
        self.gguf = header.container is Container.GGUF
        self.defaults: Mapping[str, object] = {}
        self.defaulted: set[str] = set()  # names whose value came from `defaults`
        self._numbers: dict[str, int | None] = {}  # builders read the same name for every layer
        self._overrides: dict[int, Mapping[str, object]] | None = None
        self.architecture, self.section = _identify(header)
        self.nested = not self.gguf and self.section is not header.config

    def raw(self, name: str) -> object:
        """The value as the file has it or as `defaults` have it; None if it is absent or null.

        An explicit null in config.json counts as a value, so no default is used.
        """
        value = self._find(name)
        if name == "window" and isinstance(value, int) and value < 0:
            value = 0  # -1 means no window
        has_null = not self.gguf and any(key in self.section for key in SPELLINGS[name].config)
        if value is None and name in self.defaults and not has_null:
            self.defaulted.add(name)
            return self.defaults[name]
        return value

    def states(self, name: str) -> bool:
        """Whether the file has the value; a default does not count."""
        return self._find(name) is not None

    def _find(self, name: str) -> object:
        """The value under the first spelling that the file has; None if it has none."""
        if not self.gguf:
            values = (dig(self.section, spelling) for spelling in SPELLINGS[name].config)
            return next((value for value in values if value is not None), None)
        header = self.header
        for prefix in (self.architecture, SUPER_ARCHITECTURE):
            for spelling in SPELLINGS[name].gguf:
                key = f"{prefix}.{spelling}"
                if (value := header.keys.get(key)) is not None:
                    return value
                if key in header.arrays or key in header.long_strings:
                    raise HeaderError(f"{key} is too long to store", file=header.name)
        return None

    def number(self, name: str) -> int | None:
        """A whole number, or None. A per-layer list of equal numbers is that number."""
        if name not in self._numbers:
            value = self.raw(name)
            if isinstance(value, (list, tuple)):
                value = single_item(self.named(name), value, file=self.header.name)
            self._numbers[name] = None if value is None else self.whole(name, value)
        return self._numbers[name]

    def need(self, name: str) -> int:
        """A whole number. Raises UnknownArchitectureError if the file does not have it."""
        value = self.number(name)
        if value is None:
            raise self.missing(name)
        return value

    def per_layer(self, name: str, layers: int) -> tuple[int, ...] | None:
        """A number for every layer, from a list or from one number."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            return (self.whole(name, value),) * layers
        return tuple(self.whole(name, item) for item in self.listed(name, layers) or ())

    def listed(self, name: str, layers: int) -> tuple[object, ...] | None:
        """An item for every layer; None if the file has no list of this name."""
        items = self.items(name)
        if items is None:
            return None
        return first_layers(self.named(name), items, layers, file=self.header.name)

    def override(self, name: str, layer: int) -> int | None:
        """The number that config.json gives for this layer alone (per_layer_config)."""
        if self._overrides is None:
            # {"05": {...}} -> {5: {...}}, without keys that cannot be layer numbers
            stated = self.raw("layer_overrides")
            self._overrides = {
                int(key): override
                for key, override in (stated if isinstance(stated, Mapping) else {}).items()
                if key.isdecimal()
                and len(key) <= len(str(MAX_LAYERS))
                and isinstance(override, Mapping)
            }
        layer_config = self._overrides.get(layer, {})
        values = (layer_config.get(spelling) for spelling in SPELLINGS[name].config)
        value = next((value for value in values if value is not None), None)
        return None if value is None else self.whole(name, value)

    def flag(self, name: str) -> bool | None:
        """True or false; None if the file does not state it."""
        value = self.raw(name)
        return None if value is None else bool(value)

    def text(self, name: str) -> str | None:
        """A string; None for any other type."""
        value = self.raw(name)
        return value if isinstance(value, str) else None

    def ratio(self, name: str) -> float | None:
        """A finite number of at least 0; None if the file does not state it."""
        value = self.raw(name)
        return None if value is None else self.real(name, value)

    def items(self, name: str) -> tuple[object, ...] | None:
        """The items of a list; None if it is not a list."""
        value = self.raw(name)
        return tuple(value) if isinstance(value, (list, tuple)) else None

    def missing(self, name: str) -> UnknownArchitectureError:
        """The error for a hyper-parameter that the file does not state."""
        return UnknownArchitectureError(
            f"{self.header.name}: architecture {self.architecture!r} does not state its "
            f"{name} ({self.spelled(name)}). If it uses another key for it, add that key "
            "to model/hyperparameters.tsv"
        )

    def named(self, name: str) -> str:
        """The spelling of this hyper-parameter in this file."""
        if self.gguf:
            return self.spelled(name)
        for spelling in SPELLINGS[name].config:
            if dig(self.section, spelling) is not None:
                return spelling
        return self.spelled(name)

    def spelled(self, name: str) -> str:
        """All spellings of this hyper-parameter, for messages."""
        if self.gguf:
            return " or ".join(f"{self.architecture}.{key}" for key in SPELLINGS[name].gguf)
        return " or ".join(SPELLINGS[name].config)

    def real(self, what: str, value: object) -> float:
        """The value as a finite number that a width can be multiplied by. Raises HeaderError."""
        if (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and 0 <= value <= MAX_NUMBER
        ):
            return float(value)
        raise HeaderError(f"{what} is {quoted(value)}, not a ratio", file=self.header.name)

    def whole(self, name: str, value: object) -> int:
        """The value as a whole number within its limit. JSON may write it as 32.0. Raises HeaderError."""
        if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_NUMBER:
            value = int(value)
        most = MAX_LAYERS if name in LAYER_COUNTS else MAX_NUMBER
        return whole_number(self.named(name), value, file=self.header.name, most=most)


def dig(section: Mapping[str, object], path: str) -> object:
    """A value by its path, in which dots lead into nested objects; None if it is absent."""
    value: object = section
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _identify(header: ModelHeader) -> tuple[str, Mapping[str, object]]:
    """The architecture's name in the file, and the part of the config that describes the language model."""
    if header.container is Container.GGUF:
        key = header.keys.get("general.architecture")
        if not isinstance(key, str) or not key:
            raise HeaderError(
                "no general.architecture key: the file is not a model, or it is damaged",
                file=header.name,
            )
        return _checked_name(key, header), {}
    section = text_section(header.config)
    name = section.get("model_type") or header.config.get("model_type")
    if isinstance(name, str) and name:
        return _checked_name(name, header), section
    classes = section.get("architectures") or header.config.get("architectures") or ()
    if isinstance(classes, list) and classes and isinstance(classes[0], str):
        return _checked_name(classes[0], header), section
    if "dim" in section and "n_layers" in section:  # params.json of Meta and Mistral
        return "deepseek_v3" if "kv_lora_rank" in section else SUPER_ARCHITECTURE, section
    raise UnknownArchitectureError(
        f"{header.name}: config.json has neither model_type nor architectures, so it is "
        "not a model's config"
    )


def _checked_name(name: str, header: ModelHeader) -> str:
    """The architecture's name. Raises HeaderError if it has escape sequences: many messages quote it."""
    if not name.isprintable():
        raise HeaderError(f"{quoted(name)} is not a valid architecture name", file=header.name)
    return name


def text_section(config: Mapping[str, object]) -> Mapping[str, object]:
    """The part of a config.json that describes the language model: all of it, or a nested object."""
    section = config
    for name in TEXT_SECTIONS:
        inner = section.get(name)
        if isinstance(inner, Mapping) and inner:
            section = inner
    return section


class Spellings(NamedTuple):
    """How files spell one hyper-parameter: the first spelling that the file has and that is not null counts."""

    gguf: tuple[str, ...]  # after the architecture's prefix: "{arch}.block_count"
    config: tuple[str, ...]  # a dot leads into a nested object


_ROWS = (get_data("edgekit.model", "hyperparameters.tsv") or b"").decode().splitlines()
SPELLINGS = {  # by our name
    name: Spellings(tuple(gguf.split()), tuple(config.split()))
    for name, gguf, config in (row.split("\t") for row in _ROWS if not row.startswith("#"))
}

# Parts of a config.json that describe an encoder, and what it encodes.
TOWER_SECTIONS = (
    ("vision_config", "vision"),
    ("visual", "vision"),
    ("vit_config", "vision"),
    ("vision_tower_config", "vision"),
    ("audio_config", "audio"),
    ("audio_encoder_config", "audio"),
)
TOWER_LAYERS = (
    "num_hidden_layers",
    "depth",
    "vt_num_hidden_layers",
    "n_layer",
    "layers",
    "num_layers",
    "encoder_layers",
)
TOWER_HIDDEN = ("hidden_size", "embed_dim", "vt_hidden_size", "width", "d_model")


# A key of config.json that tensor lists depend on -> the GGUF key, after the architecture's prefix.
_IN_GGUF = {
    "altup_num_inputs": "altup.num_inputs",
    "a_low_rank_dim": "attention.iclr_lora_rank",
    "decay_low_rank_dim": "attention.decay_lora_rank",
    "gate_low_rank_dim": "attention.gate_lora_rank",
    "hc_mult": "hyper_connection.count",
    "index_n_heads": "attention.indexer.head_count",
    "num_hash_layers": "hash_layer_count",
    "o_groups": "attention.output_group_count",
    "o_lora_rank": "attention.output_lora_rank",
    "parallel_expert_intermediate_size": "expert_chunk_feed_forward_length",
    "q_lora_rank": "attention.q_lora_rank",
    "rotary_dim": "rope.dimension_count",
    "use_parallel_residual": "use_parallel_residual",
    "v_low_rank_dim": "attention.value_residual_mix_lora_rank",
}
_SIGMOID_GATING = 2  # llama-hparams.h: LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID


def config_keys(header: ModelHeader) -> Mapping[str, object]:
    """The config.json, or for a GGUF those of its keys that can be derived from the GGUF's keys."""
    if header.config:
        return header.config
    prefix = f"{header.keys.get('general.architecture')}."
    values = {key: header.keys.get(prefix + gguf_key) for key, gguf_key in _IN_GGUF.items()}
    config: dict[str, object] = {key: value for key, value in values.items() if value is not None}
    if (gating := header.keys.get(prefix + "expert_gating_func")) is not None:
        config["sigmoid_router"] = gating == _SIGMOID_GATING
    return config
