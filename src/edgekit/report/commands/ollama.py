"""A plan for a GGUF model -> an Ollama Modelfile and the server that keeps to the plan.

Ollama starts llama-server: what it passes on is in llm/llama_server.go, its variables in envconfig/config.go @ fb30760.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.cache_types import CacheType
from edgekit.catalog.repositories import Form, repository_at
from edgekit.engines.llamacpp.growth import growth_limits
from edgekit.engines.llamacpp.types import ALL_LAYERS, Backend
from edgekit.report.commands import cards
from edgekit.report.commands.llamacpp import has_own_file, model_words, source_notes
from edgekit.report.commands.types import FILE, Command, Planned
from edgekit.report.lines import printable
from edgekit.sources.types import Origin

_PATHS = ("/", "./", "../", "~")
CACHES = ("f16", "q8_0", "q4_0")  # docs/faq.mdx: those it lists, the most accurate first
# llama-server reads them where no flag says it, and Ollama hands its own environment on.
_GROWTH = {"cache_ram": "LLAMA_ARG_CACHE_RAM", "ctx_checkpoints": "LLAMA_ARG_CTX_CHECKPOINTS"}


def ready(planned: Planned) -> Iterator[Command]:
    """A name that Ollama can pull is run as it is; a Modelfile is for files, and for what is not Ollama's default."""
    yield planned.command(
        "Ollama server", ["ollama", "serve"], _environment(planned), _notes(planned)
    )
    name = _from(planned)
    if not name.startswith(_PATHS) and _runs_by_default(planned):
        yield planned.command("Ollama", ["ollama", "run", name])
        return
    text = "\n".join(_modelfile(planned)) + "\n"
    notes = tuple(source_notes(planned))
    yield Command(name="Ollama Modelfile", kind=FILE, text=text, notes=notes)
    own = _name(planned)
    create = planned.command("Ollama", ["ollama", "create", own, "-f", "Modelfile"])
    run = planned.command("Ollama", ["ollama", "run", own])
    yield Command(name="Ollama", kind=create.kind, text=f"{create.text}\n{run.text}")


def _runs_by_default(planned: Planned) -> bool:
    """Whether Ollama, left alone with the server's variables, places the model as it was planned."""
    setup = planned.setup
    layers = _layers(planned)
    on_cpu = layers == 0 and not planned.plan.wish.machine.devices
    whole = layers is None or layers == planned.layers + 1
    batches = bool(planned.plan.load.microbatch_tokens)
    return (on_cpu or whole) and setup.use_mmap and not batches


def _modelfile(planned: Planned) -> Iterator[str]:
    yield f"FROM {printable(_from(planned))}"  # one line, whatever a file is called
    yield f"PARAMETER num_ctx {_context(planned)}"
    layers = _layers(planned)
    if layers is not None:
        yield f"PARAMETER num_gpu {layers}"
    load, setup = planned.plan.load, planned.setup
    if load.microbatch_tokens:
        yield f"PARAMETER num_batch {load.microbatch_tokens}"
    if not setup.use_mmap:
        yield "PARAMETER use_mmap false"


def _from(planned: Planned) -> str:
    """A tag of Ollama's library, what Ollama has already, hf.co/org/name:quant, or a file."""
    files = planned.files
    if files is not None and files.origin in {Origin.OLLAMA, Origin.OLLAMA_STORE}:
        return files.label
    if not has_own_file(planned):
        mix = planned.setup.mix or planned.plan.variant.name
        tag = repository_at(planned.plan.wish.label, Form.OLLAMA, mix)
        if tag is not None:
            return tag.name
    first, word, *_ = model_words(planned)
    if first == "-hf":
        return f"hf.co/{word}"
    if first == "-mu":
        return f"./{word.rsplit('/', maxsplit=1)[-1].partition('?')[0]}"
    return word if word.startswith(_PATHS) or word[1:2] == ":" else f"./{word}"


def _context(planned: Planned) -> int:
    """Of one request: Ollama multiplies it by the requests at once."""
    return planned.plan.context_tokens


def _parallel(planned: Planned) -> int:
    """Each has a cache of its own there; where the plan shares one, one request has all of it."""
    return planned.plan.result.streams


def _layers(planned: Planned) -> int | None:
    """None: experts alone cannot be kept on the host, so Ollama is left to divide it."""
    setup = planned.setup
    if setup.backend is Backend.CPU:
        return 0
    if setup.cpu_moe or setup.n_cpu_moe or setup.overrides:
        return None
    every = planned.layers + 1  # and the output
    return every if setup.n_gpu_layers >= ALL_LAYERS else min(setup.n_gpu_layers, every)


def _environment(planned: Planned) -> dict[str, str]:
    kept = _cache(planned)
    load, found = planned.plan.load, cards.environment(planned)
    found["OLLAMA_CONTEXT_LENGTH"] = str(_context(planned))
    found["OLLAMA_NUM_PARALLEL"] = str(_parallel(planned))
    if kept != CACHES[0]:
        found["OLLAMA_KV_CACHE_TYPE"] = kept
    if load.flash_attention is not None or kept != CACHES[0]:
        found["OLLAMA_FLASH_ATTENTION"] = "0" if load.flash_attention is False else "1"
    if len(planned.plan.result.way.cards) > 1:
        found["OLLAMA_SCHED_SPREAD"] = "1"
    limits = growth_limits(planned.plan.result)
    return found | {_GROWTH[key]: str(number) for key, number in limits.items()}


def _cache(planned: Planned) -> str:
    """One for keys and values: the most accurate that takes no more than either."""
    load = planned.plan.load
    asked = [kind for kind in (load.cache_k, load.cache_v) if kind is not None]
    least = min(map(_bits, asked), default=_bits(None))
    return next((name for name in CACHES if _BITS[name] <= least), CACHES[-1])


_BITS = {"f16": 16.0, "q8_0": 8.5, "q4_0": 4.5}


def _bits(kind: CacheType | None) -> float:
    return 16.0 if kind is None else kind.bits


def _notes(planned: Planned) -> list[str]:
    """What Ollama cannot be told."""
    plan, setup = planned.plan, planned.setup
    sequences = planned.facts.get("n_seq_max", 1)
    told = {
        _CACHES_ALIKE.format(_cache(planned)): _is_other_cache(planned),
        _EXPERTS: bool(setup.cpu_moe or setup.n_cpu_moe or setup.overrides),
        _SPLIT: bool(setup.tensor_split),
        _OFFLOAD: not setup.offload_kqv,
        _SHARED.format(sequences): sequences > 1 and plan.result.streams == 1,
    }
    return [*(note for note, holds in told.items() if holds), *cards.notes(planned)]


def _is_other_cache(planned: Planned) -> bool:
    load = planned.plan.load
    wanted = {"f16" if kind is None else kind.name for kind in (load.cache_k, load.cache_v)}
    return wanted != {_cache(planned)}


_CACHES_ALIKE = (
    f"Ollama uses one cache type ({', '.join(CACHES)}) for keys and values of all models: {{}} here"
)
_EXPERTS = "Ollama cannot move experts alone to RAM: without num_gpu it places whole layers itself"
_SPLIT = "Ollama splits layers across GPUs itself; it has no -ts"
_OFFLOAD = "Ollama has no --no-kv-offload: the cache is where the layers are"
_SHARED = "one request at a time: in Ollama each of {} parallel requests would have its own cache"


def _name(planned: Planned) -> str:
    """As Ollama spells names: small letters, digits, dots, dashes."""
    label = planned.plan.wish.label.rsplit("/", maxsplit=1)[-1].removesuffix(".gguf").lower()
    name = "".join(
        char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in label
    )
    return name.strip("._-")[:80] or "planned"
