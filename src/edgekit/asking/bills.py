"""Flags as they were given -> the engine they are for, what is asked of it, and its bill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from edgekit.engines.flags import COMMON, CONTEXT, Flag, read_flags, read_number
from edgekit.engines.llamacpp import flags as llamacpp_options
from edgekit.engines.mlx import flags as mlx_options
from edgekit.engines.native import flags as stream_options
from edgekit.engines.vllm import flags as vllm_options
from edgekit.errors import UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from edgekit.bill.types import Load, MemoryEstimate
    from edgekit.model.open import Opened
    from edgekit.model.types import Model, ModelGeometry
    from edgekit.report.bill import Bill
    from edgekit.resolver import ResolvedModel
    from edgekit.sources.types import ModelFiles, Reach

# What a plan chooses itself, or leaves to another command.
NOT_PLANNED = {
    "parallel": "-np: use --users N, which gives each user a full context",
    "unified": "-kvu: with --users every user gets a full context",
    "mmproj": "--mmproj: use edgekit check MODEL --mmproj FILE, which counts the projector",
    "lora": "--lora: use edgekit check, which counts adapters",
    "draft_model": "-md: it looks for a draft model itself; use edgekit check for one you choose",
    "spec_type": "--spec-type: it looks for a draft model itself (--no-drafter turns that off)",
    "max_num_seqs": "--max-num-seqs: use --users N for N requests at the same time",
}


class EngineOptions(Protocol):
    """What the options file of an engine has."""

    TITLE: str
    FLAGS: tuple[Flag, ...]

    def ask(self, values: Mapping[str, Any]) -> tuple[Load, Any]: ...

    def told(self, load: Load, estimate: MemoryEstimate) -> str: ...

    def settled(self, setup: Any) -> Mapping[str, Any]: ...


CELLS = 256  # llama.cpp rounds a context up to whole cells of so many
OPTIONS: dict[str, EngineOptions] = {
    "llama.cpp": llamacpp_options,
    "vllm": vllm_options,
    "mlx": mlx_options,
    "stream": stream_options,
}
PLANNED = ("llama.cpp", "vllm", "mlx")  # the built-in engine leaves a plan nothing to choose
# What the machine says, not the caller, wherever a machine is asked about.
OF_THE_MACHINE = frozenset({"cpu", "device_memory", "gpu", "gpu_memory"})
Price = Callable[["Load", Any], "MemoryEstimate"]
Pricing = Callable[["Opened", str, Mapping[str, Any], "Reach"], Price]


class Asked(NamedTuple):
    """An engine, where one was chosen, and its flags as they were typed."""

    engine: str | None
    given: Mapping[str, Any]

    def values(self, engine: str) -> dict[str, Any]:
        """Raises UsageError that names the flag."""
        return read_flags((CONTEXT, *OPTIONS[engine].FLAGS), self.given)


def read_asked(flags: Mapping[str, Mapping[str, Any]], *, engine: str | None) -> Asked:
    """Raises UsageError for flags of another engine than the one that is chosen by its name or its flags."""
    from edgekit.engines import engine_name

    named = engine_name(engine) if engine is not None else None
    given = with_one_quant(flags, named)
    common = given.pop(COMMON, {})
    able = [one for one in ((named,) if named else given) if not _foreign(one, given)]
    if given and not able:
        told = "; ".join(
            _belonging(one, keys) for one, keys in _foreign(named or "", given).items()
        )
        raise UsageError(
            f"{told}; {f'the engine here is {named}' if named else 'choose one with --engine'}"
        )
    chosen = named or next(iter(able), None)
    asked = Asked(chosen, {**common, **flags_for(chosen or COMMON, given)})
    # report unreadable values before anything is fetched
    read_flags((CONTEXT, *(OPTIONS[chosen].FLAGS if chosen is not None else ())), asked.given)
    return asked


def with_one_quant(
    flags: Mapping[str, Mapping[str, Any]], engine: str | None
) -> dict[str, dict[str, Any]]:
    """The flags with `-q`, `--quantize` and `--mix` as `--quant` where their value is not for their own engine.

    So `-q Q8_0` asks for a GGUF and `--engine mlx -q 4bit` for MLX's 4 bits. Raises UsageError for two quantisations.
    """
    from edgekit.engines import every_engine
    from edgekit.engines.quant_names import read_quant, takes

    given = {one: dict(keys) for one, keys in flags.items()}
    named = {given[COMMON]["quant"]} if given.get(COMMON, {}).get("quant") is not None else set()
    for owner, key in ((one.name, one.quant_key) for one in every_engine()):
        name = given.get(owner, {}).get(key)
        if name is None:
            continue
        if (engine or owner) != owner or not takes(owner, name):
            del given[owner][key]
            if not given[owner]:
                del given[owner]
            named.add(name)
            continue
        given[owner][key] = read_quant(owner, name)
        if named and engine is None:
            named.add(name)
    if len({str(name).upper() for name in named}) > 1:
        raise UsageError(
            f"{' and '.join(sorted(map(str, named)))} are two different quantisations: give one"
        )
    if named:
        given[COMMON] = {**given.get(COMMON, {}), "quant": named.pop()}
    return given


def quant_of(flags: Mapping[str, Mapping[str, Any]], engine: str | None = None) -> str | None:
    """The quantisation that was asked for, whatever the flag; None where the engine's own flag says it."""
    found = with_one_quant(flags, engine).get(COMMON, {}).get("quant")
    return None if found is None else str(found)


def with_quant(given: Mapping[str, Any], engine: str, quant: str | None) -> Mapping[str, Any]:
    """The engine's flags with the quantisation among them. Raises UsageError where the engine lacks it."""
    if quant is None:
        return given
    from edgekit.engines import engine_named
    from edgekit.engines.quant_names import read_quant

    value = read_quant(engine, quant)
    key = engine_named(engine).quant_key
    if str(given.get(key, value)).upper() != value.upper():
        raise UsageError(f"{given[key]} and {quant} are two different quantisations: give one")
    return {**given, key: value}


def flags_for(engine: str, given: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Its own flags that were given, and those that it shares with another engine."""
    lent = {
        flag.key: given[flag.lender][flag.key]
        for flag in _lent(engine)
        if flag.key in given.get(flag.lender, {})
    }
    return {**lent, **given.get(engine, {})}


def _lent(engine: str) -> Iterator[Flag]:
    options = OPTIONS.get(engine)
    return (flag for flag in (options.FLAGS if options else ()) if flag.lender)


def _foreign(engine: str, given: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Other engine -> flags that were given and that this one does not have."""
    lent = {(flag.lender, flag.key) for flag in _lent(engine)}
    found = {
        other: {key: text for key, text in keys.items() if (other, key) not in lent}
        for other, keys in given.items()
        if other != engine
    }
    return {other: keys for other, keys in found.items() if keys}


def _belonging(engine: str, keys: Mapping[str, Any]) -> str:
    named = {flag.key: "/".join(flag.names) for flag in reversed(OPTIONS[engine].FLAGS)}
    words = ", ".join(named[key] for key in keys)
    return f"{words} {'is a flag' if len(keys) == 1 else 'are flags'} of {engine}"


def make_bill(reference: str, asked: Asked, reach: Reach) -> Bill:
    """Raises EdgekitError: the model cannot be read, or the engine refuses it."""
    from edgekit.resolver import resolve_model

    quant = asked.given.get("quant")
    return bill_named(resolve_model(reference, reach=reach, quant=quant), asked, reach)


def bill_named(
    named: ResolvedModel, asked: Asked, reach: Reach, pricing: Pricing | None = None
) -> Bill:
    """The same of a model that is open."""
    from dataclasses import replace

    engine = asked.engine or named.first_engine
    asked = Asked(engine, with_quant(asked.given, engine, named.quant))
    bill = bill_of(named.as_file(engine), engine, asked, reach, pricing)
    return replace(bill, notes=(*named.notes, *bill.notes))


def assume_bill(name: str, asked: Asked) -> Bill:
    """By rules of thumb, of a name alone. Raises UsageError where the name does not say how large the model is."""
    from edgekit.bill.assumed import assumed_estimate, from_name
    from edgekit.bill.types import Load
    from edgekit.catalog import read_catalog
    from edgekit.engines import engine_named
    from edgekit.plan.assumed import assumed_choice
    from edgekit.report.bill import Bill

    engine = asked.engine or "llama.cpp"
    values = asked.values(engine)
    unused = ", ".join(sorted(set(values) - {"mix", "context"}))
    if unused:
        raise UsageError(
            f"--assume ignores {unused}: its rule of thumb knows only the size, the quantisation and the context"
        )
    model = from_name(name, mix=values.get("mix") or asked.given.get("quant"))
    choice = assumed_choice(model, read_catalog().entries)
    load = Load(context_tokens=values.get("context"))
    return Bill(
        label=model.name,
        reference=name,
        version="",
        asked="rule of thumb from the name alone; no file was read",
        command="",
        notes=() if choice is None else (choice.note,),
        estimate=assumed_estimate(
            model if choice is None else choice.assumed,
            load,
            engine=engine,
            wired=engine_named(engine).wires_memory,
        ),
    )


def bill_of(
    opened: Opened, engine: str, asked: Asked, reach: Reach, pricing: Pricing | None = None
) -> Bill:
    """`pricing` knows what any load costs; without it what is loaded beside the model is opened for this one bill."""
    from dataclasses import replace

    users = read_number("--users", asked.given.get("users"), least=1)
    values = values_on_cards(asked.values(engine), engine, asked.given)
    if users is not None:
        values.setdefault("context", 0)  # the whole native window, for each
    values = values_for_users(values, engine, users, opened.model)
    load, setup = OPTIONS[engine].ask(values)
    if users is not None:
        load = replace(load, sequences=users)
    estimate = (pricing or biller)(opened, engine, values, reach)(load, setup)
    return told_bill(opened, engine, values, (load, setup), estimate)


def values_for_users(
    values: Mapping[str, Any], engine: str, users: int | None, model: Model
) -> dict[str, Any]:
    """The flags with which every user has a context of their own.

    llama.cpp counts the contexts of all sequences together; vLLM and MLX count that of one. Raises UsageError.
    """
    if users is None:
        return dict(values)
    from edgekit.bill.types import Load
    from edgekit.plan.users import for_users

    load = for_users(Load(context_tokens=values.get("context")), users, engine, model)
    if engine != "llama.cpp":
        return dict(values)
    if "parallel" in values or values.get("unified"):
        raise UsageError("--users N means -np N with a context for each user: give one of them")
    found = {**values, "parallel": users, "unified": False}
    return found if load.context_tokens is None else {**found, "context": load.context_tokens}


def values_on_cards(
    values: Mapping[str, Any], engine: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The flags for the cards that --device or --vram name: their memory, and for vLLM which they are."""
    devices, vram = given.get("device") or (), given.get("vram")
    if not devices and vram is None:
        return dict(values)
    from edgekit.machine.types import Vendor
    from edgekit.machine.wishes import wished_machine

    cards = wished_machine(devices=devices, vram=vram).devices
    found: dict[str, Any] = {}
    if engine == "llama.cpp" and cards:
        backends = {Vendor.NVIDIA: "cuda", Vendor.APPLE: "metal"}
        found["backend"] = backends.get(cards[0].vendor, "vulkan")
        found["device_memory"] = tuple(card.free_bytes for card in cards)
    elif engine == "vllm" and cards:
        smallest = min(cards, key=lambda card: card.total_bytes)
        found["gpu_memory"] = smallest.total_bytes
        if devices:
            found |= read_flags(vllm_options.FLAGS, {"gpu": smallest.name})
        if len(cards) > 1:
            found["tensor_parallel_size"] = len(cards)
    return {**found, **values}


def biller(opened: Opened, engine: str, values: Mapping[str, Any], reach: Reach) -> Price:
    """What any load costs. llama.cpp is also asked about files that are loaded beside the model."""
    from edgekit.engines import engine_named

    if engine == "llama.cpp":
        from edgekit.asking.llamacpp_bill import LoadedBeside

        return LoadedBeside.of(opened, values, reach).bill
    module = engine_named(engine)
    return lambda load, setup: module.estimate(opened.model, load, setup)


def told_bill(
    opened: Opened,
    engine: str,
    values: Mapping[str, Any],
    asked: tuple[Load, Any],
    estimate: MemoryEstimate,
) -> Bill:
    """The estimate with what was asked for, in words, and the command that starts the engine so."""
    import shlex

    from edgekit.engines import engine_named
    from edgekit.report.bill import Bill

    options, files = OPTIONS[engine], opened.files
    return Bill(
        label=opened.label,
        reference=files.reference if files is not None else opened.label,
        version=engine_named(engine).version(asked[1]),
        asked=options.told(asked[0], estimate),
        notes=tuple(_notes(opened, engine, asked, values, estimate)),
        command=shlex.join(engine_named(engine).estimate_words(values, estimate, opened)),
        estimate=estimate,
        geometry=opened.model.geometry,
    )


def model_notes(
    files: ModelFiles | None,
    geometry: ModelGeometry,
    context_tokens: int | None,
    *,
    has_projector: bool = False,
) -> Iterator[str]:
    """What check and plan both say of a model at a context length, whatever the engine."""
    if files is not None:
        yield from files.notes
    if geometry.because:
        yield f"approximate: {geometry.because}"
    native, length = geometry.native_context, context_tokens
    if native is not None and length is not None and length - native >= CELLS:
        yield f"the native context is {native:,} tokens: beyond it answers get worse or become nonsense"
    if files is not None and files.projectors and not has_projector:
        yield f"{files.projectors[0].name} is not counted; --mmproj auto (llama.cpp) adds it"


def _notes(
    opened: Opened,
    engine: str,
    asked: tuple[Load, Any],
    values: Mapping[str, Any],
    estimate: MemoryEstimate,
) -> Iterator[str]:
    from edgekit.engines import engine_named

    facts: dict[str, Any] = dict(estimate.facts)
    length = facts.get("n_ctx_seq") or asked[0].context_tokens
    has_projector = "mmproj" in values
    yield from model_notes(opened.files, opened.model.geometry, length, has_projector=has_projector)
    yield from engine_named(engine).estimate_notes(values, asked[1], estimate, opened)
