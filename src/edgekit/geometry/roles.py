"""TABLE of tensor names -> what a tensor is for. GGUF and safetensors names in one list; the first match counts."""

from __future__ import annotations

import enum
import re

from edgekit.header.types import Tensor


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


# '#' stands for any number: names are matched after their numbers are replaced.
# fmt: off
_TABLE = (
    (r"\.nextn\.|(^|\.)mtp[._]|(^|\.)eh_proj", Role.MTP),
    (r"^(v|a|mm)\.|visual|vision|image_newline|audio|multi_modal_projector|mm_projector|vit\.|aligner|resampler", Role.TOWER),
    (r"_(ch)?exps\b|\.experts\.|experts\.#|\.experts_|expert_bias", Role.EXPERTS),
    (r"ffn_gate_inp|\.router\b|\.gate\.(weight|wg|e_score)|block_sparse_moe\.gate|mlp\.gate\.|exp_probs|e_score_correction|shared_expert_gate", Role.ROUTER),
    (r"^(token_embd|position_embd|token_types|per_layer_token_embd|per_layer_model_proj)|embed_tokens|word_embeddings|\bwte\b|\bwpe\b|tok_embeddings|embed_in|position_embeddings|token_type_embeddings|embedding\.", Role.EMBEDDING),
    (r"^output\.|lm_head|embed_out|output_layer|^cls\b|^cls\.", Role.OUTPUT),
    (r"norm|ln_[f#]|layer_norm|\bln\b|LayerNorm", Role.NORM),
    (r"ssm_|shortconv|time_mix|channel_mix|linear_attn|mamba|\.mixer\.(A_log|D|dt|conv|in_proj|out_proj)|\.conv\.|A_log|dt_bias|rg_lru|kda", Role.RECURRENT),
    (r"attn|attention|self_attn|\.wq|\.wk|\.wv|\.wo\b|query_key_value|indexer|\.mixer\.[qkvo]_proj", Role.ATTENTION),
    (r"ffn_|mlp|feed_forward|shared_expert|\.fc#|\.w#\.|intermediate\.dense|output\.dense|dense_h|mixer\.(up|down)_proj|laurel|altup|per_layer", Role.FEED_FORWARD),
)
# fmt: on
_RULES = tuple((re.compile(pattern), role) for pattern, role in _TABLE)
_NUMBERS = re.compile(r"\d+")
_BLOCK = re.compile(r"(?:^|\.)(?:blk|layers|h|blocks)\.(\d+)\.")

_known: dict[str, Role] = {}
_MOST_KNOWN = 65_536  # names without their numbers are a few hundred in a real file


def role_of(tensor: Tensor, *, layers: int | None = None) -> Role:
    """What the tensor is for; blocks past the last layer predict further tokens."""
    if layers is not None:
        block = _BLOCK.search(tensor.name)
        if block is not None and int(block[1]) >= layers and not _is_tower(tensor.name):
            return Role.MTP
    shape = _NUMBERS.sub("#", tensor.name)
    if shape not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[shape] = _match(shape)
    return _known[shape]


def _match(shape: str) -> Role:
    return next((role for rule, role in _RULES if rule.search(shape)), Role.OTHER)


def _is_tower(name: str) -> bool:
    return _match(_NUMBERS.sub("#", name)) is Role.TOWER
