"""TABLE of all architectures: a GGUF name -> its graph family."""

from __future__ import annotations

from collections.abc import Mapping

from edgekit.engines.llamacpp.graph.build import GraphFamily
from edgekit.engines.llamacpp.graph.families.blocks import BLOCKS
from edgekit.engines.llamacpp.graph.families.compressed import COMPRESSED
from edgekit.engines.llamacpp.graph.families.decision import DECISION
from edgekit.engines.llamacpp.graph.families.delta_net import DELTA_NETS
from edgekit.engines.llamacpp.graph.families.dense import DENSE
from edgekit.engines.llamacpp.graph.families.encoders import ENCODERS
from edgekit.engines.llamacpp.graph.families.gemma import GEMMA
from edgekit.engines.llamacpp.graph.families.hybrid import HYBRID
from edgekit.engines.llamacpp.graph.families.hyper import HYPER
from edgekit.engines.llamacpp.graph.families.indexed import INDEXED
from edgekit.engines.llamacpp.graph.families.kimi import KIMI
from edgekit.engines.llamacpp.graph.families.latent import LATENT
from edgekit.engines.llamacpp.graph.families.pooled import POOLED
from edgekit.engines.llamacpp.graph.families.rwkv import RWKV
from edgekit.engines.llamacpp.graph.families.sparse import SPARSE
from edgekit.engines.llamacpp.graph.families.switched import SWITCHED
from edgekit.engines.llamacpp.graph.families.t5 import T5_FAMILIES
from edgekit.engines.llamacpp.graph.families.transformer import FREQUENT

FAMILIES: Mapping[str, GraphFamily] = {
    **FREQUENT,
    **BLOCKS,
    **COMPRESSED,
    **DECISION,
    **DENSE,
    **ENCODERS,
    **GEMMA,
    **HYPER,
    **INDEXED,
    **LATENT,
    **POOLED,
    **RWKV,
    **SPARSE,
    **SWITCHED,
    **DELTA_NETS,
    **HYBRID,
    **KIMI,
    **T5_FAMILIES,
}
