"""vLLM."""

from __future__ import annotations

from edgekit.engines.protocol import Engine, ProgramEntry
from edgekit.engines.vllm import flags


class Vllm(Engine):
    """Facts; the rules are in the modules of this folder."""

    name = "vllm"
    title = flags.TITLE
    made_for = frozenset({"safetensors", "config"})
    page = flags.PAGE
    table = flags.TABLE
    unused_options = flags.UNUSED_OPTIONS
    quant_key = flags.QUANT_KEY
    has_ranks = True
    cache_flags = "--kv-cache-dtype"
    cache_fields = ("kv_cache_dtype",)
    chooses_repositories = True
    shares_memory = False
    for_programs = ("vllm",)
    flags = flags.FLAGS
    programs = (ProgramEntry("vllm", "edgekit.engines.vllm.program:PROGRAM", ("run", "serve")),)


ENGINE = Vllm()
