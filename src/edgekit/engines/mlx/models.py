"""A config.json -> the model file that mlx-lm loads for it, and what it does with weights and caches.

Facts are the "mlx" sections of model/architectures.json. {} means a file named after the model_type that follows the
plain rules; "file" names another one (utils.py: MODEL_REMAPPING), "file_by_class" one for some classes only.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from edgekit.errors import RefusedError, unquoted
from edgekit.model.architectures import read_section, section_by_name
from edgekit.model.tensor_recipes import TensorRole as R

Roles = frozenset[R]


class Head(enum.Enum):
    """Whether the output head is the embedding."""

    AS_STATED = "as config.json says, else it is not"
    TIED_BY_DEFAULT = "as config.json says, else it is"
    TIED = "always"
    OWN = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxModel:
    """How a model file of mlx-lm differs from the plain rules for caches and weights."""

    name: str = ""
    # caches
    own_cache: bool = False  # has make_cache: --max-kv-size is ignored
    keeps_all_tokens: bool = False  # its make_cache does not limit sliding layers to their window
    rotates_as_listed: bool = False  # slides as layer_types says, ignores a bare sliding_window
    full_heads: bool = False  # MLA: caches every head's key and value, not the latent
    listed_caches: bool = False  # layers hold a CacheList: --kv-bits is ignored
    fails_quantized: str = ""  # the error at the first step with a quantised cache
    shares: bool = True  # layers that read another layer's cache have no cache
    indexes_all: bool = False  # every layer has an indexer, though config.json lets some share one
    index_values: bool = False  # the indexer caches its key twice: as key and as value
    f32_lightning: bool = False  # the state of its linear attention is f32
    needs_row: bool = False  # its layers do not follow from standard keys
    # weights
    head: Head = Head.AS_STATED
    eight_bit: Roles = frozenset()  # always 8 bits in groups of 64
    plain: Roles = frozenset()  # never packed
    f32: Roles = frozenset()  # vectors that stay f32
    # Recipes of mixed bits give more to modules with v_proj (v_a_proj, v_b_proj) or down_proj in their path.
    values: Roles = frozenset({R.VALUE})
    downs: Roles = frozenset({R.DOWN, R.EXPERT_DOWN, R.SHARED_DOWN})
    split_latent: bool = False  # kv_b_proj becomes embed_q and unembed_out
    raw_head: bool = False  # the output head is a plain array: never packed
    raw_router: bool = False  # the router is a plain array: never packed
    shared_kv: bool = True  # layers that read another layer's cache still have K and V matrices
    split_state: bool = False  # the recurrence's input projection is three modules: Q, K and V
    ternary: bool = False  # BitLinear: two bits per weight, never packed otherwise

    @property
    def rotates(self) -> bool:
        """Whether sliding layers cache only their window."""
        return self.own_cache and not self.keeps_all_tokens


_READERS = {
    "Roles": lambda stated: frozenset(R[name.upper()] for name in stated),
    "Head": lambda stated: Head[stated.upper()],
}


def mlx_model(config: Mapping[str, Any]) -> MlxModel:
    """The model file that mlx-lm loads for this config.json. Raises RefusedError if it has none."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise RefusedError("mlx-lm: config.json has no model_type")
    if (file := config.get("model_file")) is not None:
        raise RefusedError(
            f"mlx-lm: this model needs custom code ({str(file)[:60]!r}), which is "
            "disabled by default"
        )
    sections = section_by_name("mlx", ("config",))
    section = sections.get(model_type, {})
    classes = config.get("architectures")
    listed = classes if isinstance(classes, (list, tuple)) else (classes,)
    by_class = section.get("file_by_class", {})
    class_files = (by_class[name] for name in listed if isinstance(name, str) and name in by_class)
    name = next(class_files, None) or section.get("file", model_type)
    if name not in sections:
        raise RefusedError(f"mlx-lm: Model type {unquoted(name)} not supported.")
    return model_file(name)


@lru_cache(maxsize=256)
def model_file(name: str) -> MlxModel:
    """The facts about a model file, by its name under mlx_lm/models."""
    section = section_by_name("mlx", ("config",))[name]
    facts = {key: value for key, value in section.items() if key != "file_by_class"}
    return read_section(MlxModel, {"name": name, **facts}, _READERS, where=name)
