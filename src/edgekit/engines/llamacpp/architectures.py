"""What llama.cpp knows of an architecture, and what its converter makes of a model_type.

Facts are two sections of model/architectures.json: "llamacpp", by the names in a GGUF and in config.json, and
"conversion", by model_type only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

from edgekit.model.architectures import read_section, records, section_by_name
from edgekit.model.types import Model

DEFAULT_MIX = "Q4_K_M"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppArchitecture:
    graph: str = ""  # the architecture whose graph it uses, if another
    first_build: int = 0  # for architectures added after April 2026
    graph_since: int = 0  # the build that its graph was compared with, if not all of them
    unimplemented: bool = False  # llama.cpp has the name, but no code for it
    layers_of_70b: int = 0  # layer count that llama.cpp labels "70B" (src/models/*.cpp)
    rope_sections: tuple[int, ...] = ()  # if config.json has none (conversion/qwen.py)
    default_mix: str = ""  # the mix it was released in: smaller ones lose accuracy
    full_heads: bool = False  # MLA: caches every head; the file has one matrix for the latent
    # loading
    full_rotation: bool = False  # n_rot must be the width of a head
    rotated_heads: bool = False  # matrices are n_rot wide for each head
    one_expert_is_none: bool = False  # an expert count of 1 means no experts
    without_head: bool = False  # no output head, not even one made of the token embedding
    head_made_first: bool = False  # a tied head is always a second copy of the embedding
    head_as_embedding: bool = False  # a file without token embedding loads the head twice
    scans_state: bool = False  # SSM_SCAN reads its ssm_a, not a product (llama-arch.cpp)
    # contexts and caches
    has_encoder: bool = False  # llama_model_has_encoder: an output for every token
    always_embeds: bool = False  # llama-context.cpp: output_reserve
    embeds_streams: bool = False  # an embedding has every residual stream (n_embd_out_impl)
    embeds_scores: bool = False  # an embedding is one number
    no_flash_attention: bool = False
    index_values: bool = False  # llama-kv-cache-msa.cpp: the indexer's cache has a V too
    index_parts: int = 1  # rows of a key's width per cell in the indexer's cache
    caches_router: bool = False  # one head after the last layer
    caches_empty_layers: bool = False  # layers without attention have a place in the cache
    # -sm tensor
    unsliced: bool = False  # llama-arch.cpp: llm_arch_supports_sm_tensor
    delta_net: bool = False  # queries, keys and values of the recurrence are sliced together
    mirrored_states: bool = False  # every device runs the full convolution
    mirrored_caches: bool = False
    slices_uncompared: bool = False  # read in the source, not compared with the engine
    # conversion
    dense_prediction: bool = False  # its prediction blocks have no experts: not modelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    to: str = ""  # general.architecture of the GGUF
    unsupported: bool = False  # no class in conversion/
    keeps_windows: bool = False  # the GGUF limits sliding layers to their window
    lists_kv_heads: bool = False  # writes KV heads layer by layer, 0 for a recurrence
    drops_prediction: bool = False  # leaves out prediction blocks (skip_mtp, filter_tensors)


@cache
def architecture_names() -> frozenset[str]:
    """Every general.architecture that llama.cpp loads."""
    return frozenset(name for record in records() for name in record.get("gguf", ()))


@lru_cache(maxsize=256)
def known_architecture(name: str) -> LlamaCppArchitecture:
    """llama.cpp's facts about an architecture; defaults if the name is not in the table."""
    section = section_by_name("llamacpp").get(name, {})
    return read_section(LlamaCppArchitecture, section, {}, where=name)


def default_mix(model: Model) -> str:
    """The mix if none is requested: Q4_K_M, or the one that the model was released in."""
    return known_architecture(model.geometry.architecture).default_mix or DEFAULT_MIX


@lru_cache(maxsize=256)
def conversion_of(model_type: str) -> Conversion:
    """What llama.cpp's converter makes of a model_type; by default a GGUF of the architecture with that name."""
    section = section_by_name("conversion", ("config",)).get(model_type, {})
    gguf_name = next(iter(section_by_name("gguf", ("config",)).get(model_type, ())), model_type)
    return read_section(Conversion, {"to": gguf_name, **section}, {}, where=model_type)
