"""Ollama, which starts llama-server itself: the environment of its server, and a Modelfile where one is needed.

What it passes on to llama-server is in llm/llama_server.go, its variables in envconfig/config.go @ fb30760.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.cache_types import CacheType
from edgekit.catalog.repositories import Form, repository_at
from edgekit.engines.commands import COMMAND, FILE, Command, Startup
from edgekit.engines.llamacpp.estimate import growth_limits
from edgekit.engines.llamacpp.model_source import has_own_file, model_source
from edgekit.engines.llamacpp.types import ALL_LAYERS, Backend, LoadFacts
from edgekit.model.types import block_count
from edgekit.sources.types import Origin
from edgekit.terminal import printable

PROGRAM = "ollama"
_PATHS = ("/", "./", "../", "~")
# docs/faq.mdx: the cache types it lists, the most accurate first, with their bits per value
_CACHE_BITS = {"f16": 16.0, "q8_0": 8.5, "q4_0": 4.5}
_OWN_CACHE, _SMALLEST_CACHE = "f16", "q4_0"
# llama-server reads these where no flag is given, and Ollama passes its own environment on.
_GROWTH = {"cache_ram": "LLAMA_ARG_CACHE_RAM", "ctx_checkpoints": "LLAMA_ARG_CTX_CHECKPOINTS"}

_CACHES_ALIKE = f"Ollama uses one cache type ({', '.join(_CACHE_BITS)}) for keys and values of all models: {{}} here"
_EXPERTS = "Ollama cannot move experts alone to RAM: without num_gpu it places whole layers itself"
_SPLIT = "Ollama splits layers across GPUs itself; it has no -ts"
_OFFLOAD = "Ollama has no --no-kv-offload: the cache is where the layers are"
_SHARED = "one request at a time: in Ollama each of {} parallel requests would have its own cache"


def ready(startup: Startup, notes: list[str]) -> Iterator[Command]:
    """`notes` are those on the cards. Without a Modelfile where Ollama's own placement is the one that was judged."""
    server = ["ollama", "serve"]
    told = [*_notes(startup), *notes]
    yield startup.command(PROGRAM, "Ollama server", server, _environment(startup), told)
    source, layers = _from(startup), _layers(startup)
    if not source.startswith(_PATHS) and _runs_by_default(startup, layers):
        yield startup.command(PROGRAM, "Ollama", ["ollama", "run", source])
        return
    text = "\n".join(_modelfile(startup, source, layers)) + "\n"
    note = model_source(startup).note
    yield Command(
        program=PROGRAM,
        name="Ollama Modelfile",
        kind=FILE,
        text=text,
        notes=(note,) if note else (),
    )
    own = _name(startup.label)
    steps = (["ollama", "create", own, "-f", "Modelfile"], ["ollama", "run", own])
    lines = [startup.command(PROGRAM, "Ollama", words).text for words in steps]
    yield Command(program=PROGRAM, name="Ollama", kind=COMMAND, text="\n".join(lines))


def _runs_by_default(startup: Startup, layers: int | None) -> bool:
    """Whether Ollama, with nothing but the server's variables, places the model as it was judged."""
    on_cpu = layers == 0 and not startup.machine.devices
    whole = layers is None or layers == block_count(startup.variant.model.geometry) + 1
    has_batch = bool(startup.load.microbatch_tokens)
    return (on_cpu or whole) and startup.setup.use_mmap and not has_batch


def _modelfile(startup: Startup, source: str, layers: int | None) -> Iterator[str]:
    yield f"FROM {printable(source)}"  # one line, whatever a file is called
    yield f"PARAMETER num_ctx {startup.context_tokens}"
    if layers is not None:
        yield f"PARAMETER num_gpu {layers}"
    if startup.load.microbatch_tokens:
        yield f"PARAMETER num_batch {startup.load.microbatch_tokens}"
    if not startup.setup.use_mmap:
        yield "PARAMETER use_mmap false"


def _from(startup: Startup) -> str:
    """A tag of Ollama's library, what Ollama has already, hf.co/org/name:quant, or a file."""
    files = startup.files
    if files is not None and files.origin in {Origin.OLLAMA, Origin.OLLAMA_STORE}:
        return files.label
    if not has_own_file(startup):
        mix = startup.setup.mix or startup.variant.name
        tag = repository_at(startup.label, Form.OLLAMA, mix)
        if tag is not None:
            return tag.name
    first, word, *_ = model_source(startup).words
    if first == "-hf":
        return f"hf.co/{word}"
    if first == "-mu":
        return f"./{word.rsplit('/', maxsplit=1)[-1].partition('?')[0]}"
    return word if word.startswith(_PATHS) or word[1:2] == ":" else f"./{word}"


def _layers(startup: Startup) -> int | None:
    """None: experts alone cannot be kept in RAM, so Ollama places whole layers itself."""
    setup = startup.setup
    if setup.backend is Backend.CPU:
        return 0
    if setup.cpu_moe or setup.n_cpu_moe or setup.overrides:
        return None
    every = block_count(startup.variant.model.geometry) + 1  # and the output
    return every if setup.n_gpu_layers >= ALL_LAYERS else min(setup.n_gpu_layers, every)


def _environment(startup: Startup) -> dict[str, str]:
    """Ollama multiplies the context by the requests at once, each of which has a cache of its own."""
    cache, load, found = _cache(startup), startup.load, startup.environment
    found["OLLAMA_CONTEXT_LENGTH"] = str(startup.context_tokens)
    found["OLLAMA_NUM_PARALLEL"] = str(startup.verdict.streams)
    if cache != _OWN_CACHE:
        found["OLLAMA_KV_CACHE_TYPE"] = cache
    if load.flash_attention is not None or cache != _OWN_CACHE:
        found["OLLAMA_FLASH_ATTENTION"] = "0" if load.flash_attention is False else "1"
    if len(startup.placement.cards) > 1:
        found["OLLAMA_SCHED_SPREAD"] = "1"
    limits = growth_limits(startup.verdict)
    return found | {_GROWTH[key]: str(number) for key, number in limits.items()}


def _cache(startup: Startup) -> str:
    """One type for keys and values: the most accurate that takes no more than either."""
    least = min(map(_bits, (startup.load.cache_k, startup.load.cache_v)))
    return next((name for name, bits in _CACHE_BITS.items() if bits <= least), _SMALLEST_CACHE)


def _bits(kind: CacheType | None) -> float:
    return _CACHE_BITS[_OWN_CACHE] if kind is None else kind.bits


def _notes(startup: Startup) -> Iterator[str]:
    """What Ollama has no setting for."""
    load, setup = startup.load, startup.setup
    wanted = {_OWN_CACHE if kind is None else kind.name for kind in (load.cache_k, load.cache_v)}
    if wanted != {_cache(startup)}:
        yield _CACHES_ALIKE.format(_cache(startup))
    if setup.cpu_moe or setup.n_cpu_moe or setup.overrides:
        yield _EXPERTS
    if setup.tensor_split:
        yield _SPLIT
    if not setup.offload_kqv:
        yield _OFFLOAD
    sequences = LoadFacts.of(startup.verdict.estimate).n_seq_max
    if sequences > 1 and startup.verdict.streams == 1:
        yield _SHARED.format(sequences)


def _name(label: str) -> str:
    """As Ollama spells names: lower case, digits, dots, dashes."""
    plain = label.rsplit("/", maxsplit=1)[-1].removesuffix(".gguf").lower()
    name = "".join(
        char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in plain
    )
    return name.strip("._-")[:80] or "planned"
