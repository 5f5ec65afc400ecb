"""llama.cpp."""

from __future__ import annotations

from edgekit.engines.flags import CacheFlags, Page
from edgekit.engines.llamacpp import flags
from edgekit.engines.protocol import Engine, ProgramEntry

_RUN = "edgekit.engines.llamacpp.run.program"
_OLLAMA = "edgekit.engines.llamacpp.run.ollama"


class LlamaCpp(Engine):
    """Facts; the rules are in the modules of this folder."""

    name = "llama.cpp"
    title = "llama.cpp"
    aliases = ("llamacpp", "llama-cpp", "llama_cpp", "gguf", "ollama")
    loads_gguf = True
    made_for = frozenset({"gguf"})
    page = Page(
        "llama.cpp", "llama.cpp", CacheFlags(("type_k", "type_v"), "f16"), runs=True, serves=True
    )
    table = flags.TABLE
    unused_options = frozenset({"threads", "n_threads", "n_threads_batch", "n_devices"})
    pins_placement = True
    on_gpu = flags.ON_GPU
    one_sequence = flags.ONE_SEQUENCE
    quant_key = "mix"
    companions = flags.COMPANIONS
    programs = (
        ProgramEntry("xllamacpp", f"{_RUN}:WHEEL", ("run", "serve", "verify", "calibrate")),
        ProgramEntry("llama-server", f"{_RUN}:SERVER", ("run", "serve")),
        ProgramEntry("ollama", f"{_OLLAMA}:PROGRAM", ("run", "serve"), on_request=True),
    )
    # WebP with ffmpeg on the PATH (tools/mtmd/mtmd-helper.cpp)
    image_types = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
    calls_tools = True  # --jinja is the default
    verified_flags = flags.VERIFIED
    cache_flags = "-ctk and -ctv"
    has_rule_of_thumb = True
    most_users = 256  # llama.h @ 0c1e570: LLAMA_MAX_SEQ
    default_users = "llama-server's 4 slots share one context"
    drafts = True
    for_programs = ("llama-server", "llama-cli", "ollama", "lm-studio")
    flags = flags.FLAGS


ENGINE = LlamaCpp()
