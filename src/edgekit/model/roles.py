"""The role of a tensor, by its name in a GGUF or in safetensors. The first matching pattern counts."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

from edgekit.formats.types import Tensor


class Role(enum.Enum):
    EMBEDDING = "embedding"
    OUTPUT = "output head"
    ATTENTION = "attention"
    FEED_FORWARD = "feed-forward"
    EXPERTS = "experts"
    ROUTER = "router"
    RECURRENT = "recurrence"
    NORM = "norms"
    MTP = "token prediction (MTP)"
    TOWER = "vision and audio"
    OTHER = "other"


# '#' matches any number: digits are replaced before names are matched.
# fmt: off
_TABLE = (
    (r"\.nextn\.|(^|\.)mtp[._]|(^|\.)eh_proj", Role.MTP),
    (r"^(v|a|mm|vpm|apm)\.|visual|vision|image_newline|audio|multi_modal_projector|mm_projector|vit\.|^(model\.)?(talker|token2wav|sam_model|mlp1|connector|patch_merger)\b|aligner|resampler", Role.TOWER),
    (r"_(ch)?exps\b|\.experts\.|experts\.#|\.experts_|switch_mlp|switch_glu|\.moe\.(gate|up|down)_proj|ffn_(gate|up|down)\.#\.|block_sparse_moe\.(in|out)put_linear|\.experts$", Role.EXPERTS),
    (r"ffn_gate_inp|\.router\b|\.gate\.(weight|wg|e_score)|block_sparse_moe\.gate|mlp\.gate\.|exp_probs|e_score_correction|shared_expert_gate|expert_bias", Role.ROUTER),
    (r"^(token_embd|position_embd|token_types|per_layer_token_embd|per_layer_model_proj)|embed_tokens|word_embeddings|\bwte\b|\bwpe\b|tok_embeddings|embed_in|position_embeddings|token_type_embeddings|embedding\.", Role.EMBEDDING),
    (r"^output\.|lm_head|embed_out|output_layer|^cls\b|^cls\.|^(model\.)?head\.weight", Role.OUTPUT),
    (r"Wqkv|norm_attn_norm\.attn", Role.ATTENTION),
    (r"norm|ln_[f#]|layer_norm|\bln\b|LayerNorm", Role.NORM),
    (r"ssm_|shortconv|time_mix|channel_mix|linear_attn|mamba|\.mixer\.(A_log|D|dt|conv|in_proj|out_proj|x_proj)|\.conv\.|A_log|dt_bias|rg_lru|kda|temporal_block", Role.RECURRENT),
    (r"attn|attention|self_attn|\.wq|\.wk|\.wv|\.wo\b|query_key_value|indexer|\.mixer\.[qkvo]_proj", Role.ATTENTION),
    (r"ffn_|mlp|feed_forward|shared?_expert|ffn\.|\.fc#|\.w#\.|intermediate\.dense|output\.dense|dense_h|mixer\.(up|down)_proj|laurel|altup|per_layer", Role.FEED_FORWARD),
)
# fmt: on
_RULES = tuple((re.compile(pattern.replace("#", "#+")), role) for pattern, role in _TABLE)
_NUMBERS = str.maketrans("0123456789", "#" * 10)
_HEADS = (
    "head",
    "output",
    "embed_out",
    "cls",
)  # every name that the pattern of the output head matches has one of these
_BLOCK = re.compile(r"(?:^|\.)(?:blk|layers?|h|blocks)\.(\d{1,9})\.")

# Names that differ in more than their digits: a few hundred in a real file. Any beyond the limit are "other".
_MOST_NAMES = 1_024


def roles_of(tensors: Iterable[Tensor], *, layers: int | None = None) -> tuple[Role, ...]:
    """The role of each tensor. Blocks beyond `layers` predict further tokens (MTP)."""
    known: dict[str, Role] = {}
    found = []
    for tensor in tensors:
        name = tensor.name.translate(_NUMBERS)
        role = known.get(name)
        if role is None:
            matches = _RULES if len(known) < _MOST_NAMES else ()
            role = next((one for rule, one in matches if rule.search(name)), Role.OTHER)
            known[name] = role
        if layers is not None and role is not Role.TOWER and name != tensor.name:
            block = block_of(tensor.name)
            role = Role.MTP if block is not None and block >= layers else role
        found.append(role)
    return tuple(found)


def block_of(name: str) -> int | None:
    """The index of the layer that a tensor belongs to; None if it is outside the layers."""
    found = _BLOCK.search(name)
    return int(found[1]) if found is not None else None


def has_output_head(tensors: Iterable[Tensor]) -> bool:
    likely = (tensor for tensor in tensors if any(part in tensor.name for part in _HEADS))
    return Role.OUTPUT in roles_of(likely)
