"""TABLE of architectures: a GGUF name -> how its graph is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgekit.engines.llamacpp.graph.families.blocks import BLOCKS
from edgekit.engines.llamacpp.graph.families.compressed import COMPRESSED
from edgekit.engines.llamacpp.graph.families.decoders import DECODERS
from edgekit.engines.llamacpp.graph.families.dense import DENSE
from edgekit.engines.llamacpp.graph.families.encoders import ENCODERS
from edgekit.engines.llamacpp.graph.families.gemma3n import Gemma3n
from edgekit.engines.llamacpp.graph.families.indexed import INDEXED
from edgekit.engines.llamacpp.graph.families.latent import Latent, deepseek2_routing, input_latent
from edgekit.engines.llamacpp.graph.families.llama4 import Llama4, llama4_routing, rotates
from edgekit.engines.llamacpp.graph.families.mixtures import MIXTURES
from edgekit.engines.llamacpp.graph.families.per_layer import Gemma4
from edgekit.engines.llamacpp.graph.families.pictures import PICTURES
from edgekit.engines.llamacpp.graph.families.rwkv import RWKV
from edgekit.engines.llamacpp.graph.families.sparse import SPARSE
from edgekit.engines.llamacpp.graph.families.stateful import STATEFUL
from edgekit.engines.llamacpp.graph.families.t5 import CROSSING
from edgekit.engines.llamacpp.graph.families.usual import USUAL
from edgekit.engines.llamacpp.graph.llama.attention import input_kv, input_kv_iswa
from edgekit.engines.llamacpp.graph.llama.build import GraphFamily
from edgekit.engines.llamacpp.graph.llama.feed_forward import Routing

_DEEPSEEK2 = Latent(
    attn_input=input_latent,
    temperature=lambda hparams: bool(hparams.real("attention.temperature_scale")),
    routing=deepseek2_routing,
)

FAMILIES: Mapping[str, GraphFamily] = {
    **USUAL,
    "deepseek2": _DEEPSEEK2,
    "mistral4": replace(
        _DEEPSEEK2, routing=lambda hparams: replace(deepseek2_routing(hparams), precise=True)
    ),
    "minicpm3": Latent(attn_input=input_kv, scaled_embd=True, scaled_residual=True),
    "llama4": Llama4(rope=rotates, routing=llama4_routing, temperature=lambda _hparams: True),
    "gemma3n": Gemma3n(attn_input=input_kv_iswa),
    "gemma4": Gemma4(
        attn_input=input_kv_iswa,
        routing=lambda _hparams: Routing(),
        logit_softcap=lambda hparams: bool(hparams.real("final_logit_softcapping")),
    ),
    **BLOCKS,
    **COMPRESSED,
    **DECODERS,
    **DENSE,
    **ENCODERS,
    **INDEXED,
    **MIXTURES,
    **PICTURES,
    **RWKV,
    **SPARSE,
    **STATEFUL,
    **CROSSING,
}
