"""A header's keys or config -> numbers asked for by our own words, checked on the way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.errors import HeaderError, HeaderLimitError, UnknownArchitectureError
from edgekit.formats.quoting import quoted
from edgekit.formats.types import TEXT_SECTIONS, ModelHeader
from edgekit.model.keys import BY_WORD
from edgekit.sources.types import Container

# Above the largest real model by a wide margin, below what would cost time or memory here.
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS; the deepest real model has 126 (Llama 3.1 405B)
MAX_NUMBER = 2**32 - 1  # what a uint32 of a GGUF holds; every real width is far smaller
LAYER_COUNTS = frozenset({"layers", "mtp_layers", "loops"})  # lists and loops are made from them

SUPER_ARCHITECTURE = "llama"  # its keys stand in where an architecture's own are missing


class Hyper:
    """Hyper-parameters by our words. GGUF and config.json look the same from outside."""

    def __init__(self, header: ModelHeader) -> None:
        self.header = header
        self.gguf = header.container is Container.GGUF
        self.defaults: Mapping[str, Any] = {}
        self.defaulted: set[str] = set()  # words that came from a default, to be told
        self._numbers: dict[str, int | None] = {}  # builders ask for the same word in every layer
        self._overrides: dict[int, Mapping[str, Any]] | None = None
        self.architecture, self.section = _identify(header)
        self.nested = not self.gguf and self.section is not header.config

    def raw(self, word: str) -> Any:
        """The value as it stands in the file, None when it is absent or null."""
        found = self._find(word)
        if word == "window" and isinstance(found, int) and found < 0:
            found = 0  # -1 and the like: no window
        if found is None and word in self.defaults and not self._is_null(word):
            self.defaulted.add(word)
            return self.defaults[word]
        return found

    def states(self, word: str) -> bool:
        """Whether the file itself says it."""
        return self._find(word) is not None

    def _is_null(self, word: str) -> bool:
        """config.json says outright that there is none, so no default stands in."""
        return not self.gguf and any(s in self.section for s in BY_WORD[word].config)

    def _find(self, word: str) -> Any:
        key = BY_WORD[word]
        if self.gguf:
            return self._find_gguf(key.gguf)
        return next((v for s in key.config if (v := dig(self.section, s)) is not None), None)

    def _find_gguf(self, suffixes: tuple[str, ...]) -> Any:
        keys = self.header.keys
        for prefix in (self.architecture, SUPER_ARCHITECTURE):
            for suffix in suffixes:
                name = f"{prefix}.{suffix}"
                if (value := keys.get(name)) is not None:
                    return value
                if name in self.header.arrays or name in self.header.long_strings:
                    raise HeaderError(f"{name} is too long to store", file=self.header.name)
        return None

    def top(self, spelling: str) -> Any:
        """A key of config.json outside the language model's section."""
        return self.header.config.get(spelling)

    def number(self, word: str) -> int | None:
        """A whole number, or None. A per-layer list of equal numbers is that number."""
        if word not in self._numbers:
            self._numbers[word] = self._number(word)
        return self._numbers[word]

    def _number(self, word: str) -> int | None:
        value = self.raw(word)
        if isinstance(value, (list, tuple)):
            if len(set(map(repr, value))) != 1:
                raise HeaderError(
                    f"{self.named(word)} is a list, but must be a single number",
                    file=self.header.name,
                )
            value = value[0]
        return None if value is None else self.whole(word, value)

    def need(self, word: str) -> int:
        value = self.number(word)
        if value is None:
            raise self.missing(word)
        return value

    def per_layer(self, word: str, layers: int) -> tuple[int, ...] | None:
        """One number for each layer, from a number or a list."""
        value = self.raw(word)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            return (self.whole(word, value),) * layers
        return tuple(self.whole(word, item) for item in self.listed(word, layers) or ())

    def listed(self, word: str, layers: int) -> tuple[Any, ...] | None:
        """One item for each layer, None when the file has no such list."""
        items = self.items(word)
        if items is not None and len(items) < layers:
            raise HeaderError(
                f"{self.named(word)} lists {len(items)} layers, but the model has {layers}",
                file=self.header.name,
            )
        return None if items is None else items[:layers]

    def own(self, word: str, layer: int) -> int | None:
        """A number that config.json gives for this one layer (per_layer_config)."""
        if self._overrides is None:
            self._overrides = _by_layer(self.raw("layer_overrides"))
        mine = self._overrides.get(layer, {})
        found = next((v for s in BY_WORD[word].config if (v := mine.get(s)) is not None), None)
        return None if found is None else self.whole(word, found)

    def flag(self, word: str) -> bool | None:
        value = self.raw(word)
        return None if value is None else bool(value)

    def text(self, word: str) -> str | None:
        value = self.raw(word)
        return value if isinstance(value, str) else None

    def ratio(self, word: str) -> float | None:
        value = self.raw(word)
        return None if value is None else self.real(word, value)

    def items(self, word: str) -> tuple[Any, ...] | None:
        value = self.raw(word)
        return tuple(value) if isinstance(value, (list, tuple)) else None

    def missing(self, word: str) -> UnknownArchitectureError:
        return UnknownArchitectureError(
            f"{self.header.name}: architecture {self.architecture!r} does not state its "
            f"{word} ({self.spelled(word)}). If it uses another key for it, add that key "
            "to model/keys.py"
        )

    def named(self, word: str) -> str:
        """How this file spells it."""
        if self.gguf:
            return self.spelled(word)
        found = (s for s in BY_WORD[word].config if dig(self.section, s) is not None)
        return next(found, None) or self.spelled(word)

    def spelled(self, word: str) -> str:
        """How any file may spell it."""
        key = BY_WORD[word]
        if self.gguf:
            return " or ".join(f"{self.architecture}.{suffix}" for suffix in key.gguf)
        return " or ".join(key.config)

    def real(self, what: str, value: Any) -> float:
        """The value as a finite number that a width can be multiplied by; HeaderError otherwise."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= MAX_NUMBER:  # NaN is neither
            raise HeaderError(f"{what} is {value!r:.60}, not a ratio", file=self.header.name)
        return float(value)

    def whole(self, word: str, value: Any) -> int:
        """The value as a whole number within its limit; HeaderError for anything else."""
        if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_NUMBER:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise HeaderError(
                f"{self.named(word)} is {value!r:.60}, not a whole number", file=self.header.name
            )
        if value < 0:
            raise HeaderError(f"{self.named(word)} is {value!r:.60}", file=self.header.name)
        limit = MAX_LAYERS if word in LAYER_COUNTS else MAX_NUMBER
        if value > limit:
            raise HeaderLimitError(
                self.named(word), value=value, limit=limit, file=self.header.name
            )
        return int(value)


def _by_layer(overrides: Any) -> dict[int, Mapping[str, Any]]:
    """{"05": {...}} -> {5: {...}}, what no layer can have left out."""
    if not isinstance(overrides, Mapping):
        return {}
    digits = len(str(MAX_LAYERS))
    return {
        int(key): mine
        for key, mine in overrides.items()
        if key.isdecimal() and len(key) <= digits and isinstance(mine, Mapping)
    }


def dig(section: Mapping[str, Any], path: str) -> Any:
    """A value by its path, dots leading into nested objects; None where there is none."""
    value: Any = section
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _identify(header: ModelHeader) -> tuple[str, Mapping[str, Any]]:
    """What the file calls its architecture, and the part of it that describes the language model."""
    if header.container is Container.GGUF:
        name = header.keys.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise HeaderError(
                "no general.architecture key: the file is not a model, or it is damaged",
                file=header.name,
            )
        return _checked_name(name, header), {}
    section = text_section(header.config)
    name = section.get("model_type") or header.config.get("model_type")
    if isinstance(name, str) and name:
        return _checked_name(name, header), section
    classes = section.get("architectures") or header.config.get("architectures") or ()
    if isinstance(classes, list) and classes and isinstance(classes[0], str):
        return _checked_name(classes[0], header), section
    if "dim" in section and "n_layers" in section:  # Meta's and Mistral's own params.json
        return "deepseek_v3" if "kv_lora_rank" in section else SUPER_ARCHITECTURE, section
    raise UnknownArchitectureError(
        f"{header.name}: config.json has neither model_type nor architectures, so it is "
        "not a model's config"
    )


def _checked_name(name: str, header: ModelHeader) -> str:
    """The name of an architecture is in many messages: one with escape sequences, which no engine has, is refused."""
    if not name.isprintable():
        raise HeaderError(f"{quoted(name)} is not a valid architecture name", file=header.name)
    return name


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the language model: the file itself, or a nested object."""
    section = config
    for name in TEXT_SECTIONS:
        inner = section.get(name)
        if isinstance(inner, Mapping) and inner:
            section = inner
    return section
