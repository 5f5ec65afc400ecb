"""TABLE of tensor names -> what a tensor is for. GGUF and safetensors names in one list; the first match counts."""

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


# '#' stands for any number: names are matched after their digits are replaced.
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
_HEADS = ("head", "output", "embed_out", "cls")  # in every name that the output's rule matches
_BLOCK = re.compile(r"(?:^|\.)(?:blk|layers?|h|blocks)\.(\d{1,9})\.")

# Names with their digits hidden: a few hundred in a real file; what comes after these is "other".
_MOST_SHAPES = 1_024


def roles_of(tensors: Iterable[Tensor], *, layers: int | None = None) -> tuple[Role, ...]:
    """What each tensor is for; blocks past the last layer predict further tokens."""
    known: dict[str, Role] = {}
    return tuple(_role(tensor.name, layers, known) for tensor in tensors)


def block_of(name: str) -> int | None:
    """The number of the layer that a tensor belongs to."""
    found = _BLOCK.search(name)
    return int(found[1]) if found is not None else None


def has_output_head(tensors: Iterable[Tensor]) -> bool:
    likely = (tensor for tensor in tensors if any(part in tensor.name for part in _HEADS))
    return Role.OUTPUT in roles_of(likely)


def _role(name: str, layers: int | None, known: dict[str, Role]) -> Role:
    shape = name.translate(_NUMBERS)
    role = known.get(shape)
    if role is None:
        role = _match(shape) if len(known) < _MOST_SHAPES else Role.OTHER
        known[shape] = role
    if layers is None or role is Role.TOWER or shape == name:  # no digits: in no block
        return role
    block = block_of(name)
    return Role.MTP if block is not None and block >= layers else role


def _match(shape: str) -> Role:
    return next((role for rule, role in _RULES if rule.search(shape)), Role.OTHER)
