"""The keys of one architecture: numbers in their bounds, and none that would change the result unseen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edgekit.engines.native.types import ModelUse
from edgekit.errors import HeaderError, HeaderLimitError
from edgekit.formats.types import Value
from edgekit.terminal import quoted

# Of {architecture}.attention.* and {architecture}.rope.*: what is understood, here or in rope.py.
# Any other of them would change what is computed. llama-arch.cpp:246-315 @ b21e4de.
UNDERSTOOD = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon",
        "attention.causal",
        "attention.sliding_window",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.attn_factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",  # told to people, used by nobody
        "rope.scaling.yarn_ext_factor",
        "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    }
)
# Of families whose layers may have windows.
UNDERSTOOD_OF_WINDOWS = frozenset({"attention.sliding_window_pattern", "rope.freq_base_swa"})
_WATCHED = ("attention.", "rope.")
# Elsewhere: what changes the result, and the value at which it does not (0 and False never do).
CHANGING: Mapping[str, Value | None] = {
    "expert_count": None,
    "expert_used_count": None,
    "expert_shared_count": None,
    "moe_every_n_layers": None,
    "nextn_predict_layers": None,
    "attn_logit_softcapping": None,
    "use_parallel_residual": None,
    "swiglu_clamp_exp": None,
    "swiglu_clamp_shexp": None,
    "embedding_length_per_layer_input": None,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "dense_2_feat_out": None,
    "dense_3_feat_out": None,
}
# And what changes the next token, but no vector.
CHANGING_TOKENS: Mapping[str, Value | None] = {
    "final_logit_softcapping": None,
    "logit_scale": 1.0,
}


@dataclass(frozen=True, slots=True)
class Keys:
    """`all_keys` of a file, seen with its architecture's prefix."""

    file: str
    architecture: str
    all_keys: Mapping[str, Value]
    use: ModelUse = ModelUse.EMBED

    def get(self, name: str) -> Value | None:
        return self.all_keys.get(f"{self.architecture}.{name}")

    def whole(self, name: str, *, most: int, otherwise: int | None = None) -> int:
        """A whole number from 1 to `most`. One number for each layer counts when all are the same."""
        value = self.get(name)
        if isinstance(value, tuple) and value and len(set(value)) == 1:
            value = value[0]
        if value is None and otherwise is not None:
            return otherwise
        if value is None:
            raise self._missing(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(
                f"{self.architecture}.{name} is {quoted(value)}, but must be a whole "
                "number of at least 1"
            )
        if value > most:
            raise HeaderLimitError(
                f"{self.architecture}.{name}", value=value, limit=most, file=self.file
            )
        return value

    def number(self, name: str, *, otherwise: float | None = None) -> float:
        """A finite number that is not negative."""
        value = self.get(name)
        if value is None and otherwise is not None:
            return otherwise
        if value is None:
            raise self._missing(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{self.architecture}.{name} is {quoted(value)}, but must be a number")
        if not math.isfinite(value) or value < 0:
            raise self.error(
                f"{self.architecture}.{name} is {value}, but must be a finite number of at least 0"
            )
        return float(value)

    def flag(self, name: str, *, otherwise: bool) -> bool:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(
                f"{self.architecture}.{name} is {quoted(value)}, but must be true or false"
            )
        return otherwise if value is None else value

    def refuse_unknown(self, *, windows: bool = False) -> None:
        """Whatever would make another model of it. With `windows` its layers may have some."""
        prefix = f"{self.architecture}."
        understood = UNDERSTOOD | UNDERSTOOD_OF_WINDOWS if windows else UNDERSTOOD
        changing = CHANGING if self.use is ModelUse.EMBED else {**CHANGING, **CHANGING_TOKENS}
        for key, value in self.all_keys.items():
            name = key.removeprefix(prefix)
            if name == key or not value:
                continue
            changes = name in changing and value != changing[name]
            if changes or (name.startswith(_WATCHED) and name not in understood):
                raise self.error(
                    f"key {quoted(key)} ({quoted(value)}) needs something that "
                    f"{self.use.engine} does not support (engines/native/keys.py); engine "
                    "llama.cpp may"
                )

    def _missing(self, name: str) -> HeaderError:
        return self.error(
            f"key {self.architecture}.{name} is missing, so this is not {self.use.value}"
        )

    def error(self, what: str) -> HeaderError:
        return HeaderError(what, file=self.file)
