"""MLX: mlx-lm."""

from __future__ import annotations

from types import MappingProxyType

from edgekit.engines.mlx import flags
from edgekit.engines.protocol import Engine, ProgramEntry


class Mlx(Engine):
    """Facts; the rules are in the modules of this folder."""

    name = "mlx"
    title = flags.TITLE
    aliases = ("mlx-lm", "mlx_lm")
    made_for = frozenset({"safetensors", "config", "mlx"})
    page = flags.PAGE
    table = flags.TABLE
    unused_options = flags.UNUSED_OPTIONS
    quant_key = flags.QUANT_KEY
    cache_flags = "--kv-bits"
    cache_fields = ("kv_bits", "quantized_kv_start")
    wires_memory = True
    has_rule_of_thumb = True
    no_embeddings = "mlx-lm does not return embeddings; llama.cpp and vLLM do"
    for_programs = ("mlx", "lm-studio")
    flags = flags.FLAGS
    run_flags = MappingProxyType({quant_key: "stored"})  # not as mlx_lm.convert would make them
    calls_tools = True
    programs = (ProgramEntry("mlx", "edgekit.engines.mlx.program:PROGRAM", ("run", "serve")),)


ENGINE = Mlx()
