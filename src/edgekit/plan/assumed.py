"""A memory estimate by rules of thumb for a model of which only the name or its size is known ("a 30B at Q4_K_M").

Weights are parameters x bits of the mix, plus 5 % for mixture-of-experts models, whose routers and attention have more
bits. The overhead depends on the size, plus 15 % for MLX, which wires its graph. The KV cache comes from the index:
from the model of about that size with the largest cache, a dense one unless the active parameters are known too. The
numbers are a policy, not measurements: every line is ASSUMED and says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction

from edgekit.bill.types import (
    F16,
    LAYERS_UNKNOWN,
    Component,
    Load,
    MemoryEstimate,
    MemoryLine,
    Price,
    Setup,
)
from edgekit.engines import default_engine, engine_named
from edgekit.engines.entries import open_entry
from edgekit.errors import EdgekitError, RefusedError, UsageError
from edgekit.formats.mixes import dynamic_mix, mix_by_name, plain_mix
from edgekit.formats.quantization import mlx_bits_per_weight
from edgekit.index.types import Entry, ModelPurpose
from edgekit.machine.types import DEVICE
from edgekit.model.types import Attention, Model, ModelGeometry, Span
from edgekit.sources.filenames import base_of, quant_tag
from edgekit.units import GIB, Basis, format_bytes, format_count

# --- size and quantisation from a name

MAX_NAME_CHARS = 400  # hub names end at 96, file names at 255
MAX_PARAMETERS = 10**14  # a hundred times the largest public model

_UNITS = {"M": 10**6, "B": 10**9, "T": 10**12}
# "7B", "1.5b", "270M", "1T", "8x7B", "7b1" for 7.1; a leading A means active parameters, a leading E effective ones.
_SIZE = re.compile(
    r"(?:^|(?<=[^A-Za-z0-9.]))(?P<mark>[AE]?)(?:(?P<experts>\d{1,3})x)?"
    r"(?P<whole>\d{1,4})(?:[.](?P<part>\d{1,3}))?(?P<unit>[MBT])(?P<tail>\d?)(?=$|[^A-Za-z0-9])",
    re.IGNORECASE | re.ASCII,
)
# "17B-16E": 17B active parameters and 16 experts of unknown size.
_EXPERT_COUNT = re.compile(r"\dB[-_ ]\d{1,4}E(?=$|[-_. ])", re.IGNORECASE | re.ASCII)
_MOE = re.compile(r"moe|mixtral", re.IGNORECASE)
_MLX_BITS = re.compile(r"(?:^|(?<=[-_. ]))([2-8])[-_ ]?bit(?=$|[-_. ])", re.IGNORECASE | re.ASCII)
# Mixes of quantised weights and full-width embeddings: a name does not give the proportion.
_OPAQUE = re.compile(
    r"(?:^|(?<=[-_. ]))(AWQ|GPTQ|FP8|INT[48]|W[48]A\d+|EXL[23]|BNB|HQQ|AQLM|QAT)(?=$|[-_. ])",
    re.IGNORECASE,
)
# Smaller counts are not sizes: "-1M" at the end of a name is a context of a million tokens.
_SMALLEST = 10**7


UNSTATED_MIX = "16 bits, the default"  # the mix of a name that states none


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedModel:
    """The inputs of the rules of thumb."""

    name: str
    parameters: int
    has_experts: bool
    bits_per_weight: float
    mix: str  # name of the quantisation: "Q4_K_M", "4bit"
    # Of a model whose sizes the index knows; None: they come from words in its name.
    active_parameters: int | None = None
    is_known: bool = False
    geometry: ModelGeometry | None = field(default=None, repr=False)


def from_name(reference: str, *, mix: str | None = None) -> AssumedModel:
    """Inputs from a name. `mix` overrides the one in the name; the default is 16 bits.

    Raises UsageError, with what to do instead, if the name does not contain a size or a part of the weights has a
    quantisation of its own.
    """
    name, _, tag = base_of(reference[:MAX_NAME_CHARS]).partition(":")
    sizes = [match for match in _SIZE.finditer(name) if _count(match) >= _SMALLEST]
    totals = [match for match in sizes if not match["mark"]]
    if not totals or _EXPERT_COUNT.search(name):
        partial = ", ".join(match[0] for match in totals or sizes)
        note = f" ({partial} counts only some of them)" if partial else ""
        raise UsageError(
            f"{reference[:80]!r} does not state the number of parameters{note}: give the "
            "model's files, its config.json, or a name with its size, such as Qwen3-8B-Q4_K_M"
        )
    largest = max(totals, key=_count)
    has_experts = (
        len(sizes) > len(totals) or largest["experts"] is not None or bool(_MOE.search(name))
    )
    mix_name, bits = UNSTATED_MIX, 16.0
    for part in (tag, name):
        if (tagged := quant_tag(part)) is not None:
            mix_name, bits = tagged, bits_of(tagged)
            break
        if (plain := _MLX_BITS.search(part)) is not None:
            mix_name, bits = f"{plain[1]}bit", mlx_bits_per_weight(int(plain[1]))
            break
        if (opaque := _OPAQUE.search(part)) is not None:
            raise UsageError(
                f"{opaque[1]} quantises only some of the weights, and a name does not say "
                "how many. Give the model's files or its config.json"
            )
    if mix is not None:
        mix_name, bits = mix, bits_of(mix)
    parameters = _count(largest)
    if parameters > MAX_PARAMETERS:
        raise UsageError(f"invalid parameter count: {parameters:,}")
    return AssumedModel(
        name=name,
        parameters=parameters,
        has_experts=has_experts,
        bits_per_weight=bits,
        mix=mix_name,
    )


def _count(size: re.Match[str]) -> int:
    """Number of parameters. 8x7B counts as 56B: shared layers are counted once per expert, so it is never too low."""
    part = size["part"] or size["tail"]
    number: int = int(size["whole"] + part) * _UNITS[size["unit"].upper()] // 10 ** len(part or "")
    return number * int(size["experts"] or 1)


def bits_of(mix: str) -> float:
    """Bits per weight of a named mix ("Q4_K_M") or of MLX's "4bit". Raises UsageError for anything else."""
    known_mix, dynamic = mix_by_name(plain_mix(mix)), dynamic_mix(mix)
    if known_mix is not None:
        return known_mix.bits_per_weight * (1 if dynamic is None else dynamic.usual)
    if (plain := _MLX_BITS.fullmatch(mix)) is not None:
        return mlx_bits_per_weight(int(plain[1]))
    raise UsageError(
        f"unknown quantisation {mix[:40]!r}: its bits per weight are not in formats/mixes.py"
    )


# --- the rules of thumb

# (parameters below this, overhead in GiB); for mixture-of-experts models the overhead is constant
_OVERHEADS = ((10 * 10**9, Fraction(12, 10)), (30 * 10**9, Fraction(25, 10)))
_LARGEST_OVERHEAD = Fraction(4)
_EXPERTS_OVERHEAD = Fraction(3)
_EXPERTS_FACTOR = Fraction(105, 100)
_WIRING_FACTOR = Fraction(115, 100)
_UNKNOWN_CONTEXT = 32_768
_STATE_BYTES = 4  # f32
_NO_CACHE = (
    "the KV cache is not included: a name alone does not give the number of layers and "
    "heads. Give the model's files or its config.json"
)


def assumed_estimate(
    model: AssumedModel,
    load: Load,
    *,
    engine: str,
    backend: str = "",
    wired: bool = False,
) -> MemoryEstimate:
    """Weights, overhead, and the KV cache if the geometry is known. `wired`: the engine wires its graph (MLX)."""
    parameters = f"{format_count(model.parameters)} parameters"
    weights = model.parameters * Fraction(model.bits_per_weight) / 8
    why = f"{parameters} x {model.bits_per_weight:g} bits / 8"
    overhead = next((gib for below, gib in _OVERHEADS if model.parameters < below), None)
    overhead = overhead or _LARGEST_OVERHEAD
    overhead_why = f"{parameters}: {float(overhead):g} GiB"
    if model.has_experts:
        weights, why = weights * _EXPERTS_FACTOR, f"{why} x 1.05 for experts"
        overhead, overhead_why = _EXPERTS_OVERHEAD, "MoE models of any size: 3 GiB"
    if wired:
        overhead, overhead_why = overhead * _WIRING_FACTOR, f"{overhead_why} x 1.15 for wiring"
    cache = () if model.geometry is None else _cache_lines(model.geometry, load)
    return MemoryEstimate(
        engine=engine,
        backend=backend,
        lines=(
            _line(Component.WEIGHTS, weights, f"{why} ({model.mix})"),
            *cache,
            _line(Component.RUNTIME, overhead * GIB, overhead_why),
        ),
        facts=(("parameters", model.parameters), ("bits_per_weight", model.bits_per_weight)),
        notes=(_NO_CACHE,) if model.geometry is None else (),
    )


def _cache_lines(geometry: ModelGeometry, load: Load) -> tuple[MemoryLine, ...]:
    """The KV cache and the recurrent states; a line of 0 bytes is left out."""
    tokens = load.context_tokens or geometry.native_context or _UNKNOWN_CONTEXT
    key_type, value_type = load.cache_k or F16, load.cache_v or F16
    cache_bytes = 0
    for stream in (stream for layer in geometry.layers for stream in layer.mixer.streams):
        kind = value_type if stream.name == "v" else key_type
        cached_tokens = tokens if stream.span is Span.ALL else min(tokens, stream.span_tokens)
        rows = -(-cached_tokens // stream.tokens_per_row)
        cache_bytes += rows * -(-stream.elements // kind.block_elements) * kind.block_bytes
    states = sum(state.elements for layer in geometry.layers for state in layer.mixer.states)
    state_bytes = states * _STATE_BYTES * (load.sequences or 1)
    layers = (
        f"{tokens:,} tokens in {len(geometry.layers)} layers, {key_type.name}/{value_type.name}"
    )
    sequence = f"{states:,} state values per sequence x {_STATE_BYTES} bytes"
    return tuple(
        _line(component, size, f"{why}: {format_bytes(size)}")
        for component, size, why in (
            (Component.KV_CACHE, cache_bytes, layers),
            (Component.STATE, state_bytes, sequence),
        )
        if size
    )


def _line(component: Component, size_bytes: Fraction | int, because: str) -> MemoryLine:
    return MemoryLine(
        component=component,
        size_bytes=-(-size_bytes.numerator // size_bytes.denominator),
        pool=DEVICE,
        basis=Basis.ASSUMED,
        because=because,
    )


# --- the known model whose KV cache is used

ABOUT = 1.25  # sizes that differ by no more than this factor are about the same
ABOUT_ACTIVE = 2.0  # active parameters: the cache is that of the attention, which differs less
COMPARED_TOKENS = 32_768
MOST_COMPARED = 40  # of the most used models: each has to be opened


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedChoice:
    """A model known only by name, and the catalog model whose KV cache stands in for its own."""

    assumed: AssumedModel
    stand_in: Model = field(repr=False)  # its layers, with an unknown native context
    stand_in_name: str

    @property
    def note(self) -> str:
        mixers = (layer.mixer for layer in self.stand_in.geometry.layers)
        shared = max(
            (mixer.heads // mixer.kv_heads for mixer in mixers if isinstance(mixer, Attention)),
            default=1,
        )
        ungrouped = ""
        if shared > 1:
            ungrouped = (
                f" (an older model without grouped-query attention needs {shared} times as much)"
            )
        known = self.assumed.is_known
        return (
            f"ASSUMED from {'its size' if known else 'the name'} alone: {self.size}, with the cache of "
            f"{self.stand_in_name}{ungrouped}. Give a file or a repository for a better estimate"
        )

    @property
    def size(self) -> str:
        """'31.2B parameters (3.6B active) at Q4_K_M'."""
        active = self.assumed.active_parameters
        is_part = active is not None and active != self.assumed.parameters
        some = f" ({format_count(active)} active)" if is_part and active is not None else ""
        return f"{format_count(self.assumed.parameters)} parameters{some} at {self.assumed.mix}"

    def at_mix(self, mix: str) -> AssumedChoice:
        """The same model at this quantisation. Raises UsageError if its bits per weight are not known."""
        assumed = replace(self.assumed, mix=mix, bits_per_weight=bits_of(mix))
        return replace(self, assumed=assumed)

    def bill(self, engine: str) -> Price:
        """The bill as a function of the load. Raises RefusedError for an engine without a rule of thumb."""
        rules = engine_named(engine)
        if not rules.has_rule_of_thumb:
            raise RefusedError(f"a name alone is not enough for {engine}: give a repository")

        def priced(load: Load, setup: Setup) -> MemoryEstimate:
            backend = setup.backend.value if hasattr(setup, "backend") else ""
            estimate = assumed_estimate(
                self.assumed, load, engine=engine, backend=backend, wired=rules.wires_memory
            )
            lines = tuple(
                part
                for line in estimate.lines
                for part in rules.divided(line, self.stand_in, setup)
            )
            return replace(estimate, lines=lines, notes=(*estimate.notes, self.note))

        return priced


def assumed_choice(assumed: AssumedModel, entries: Iterable[Entry]) -> AssumedChoice | None:
    """The model with the stand-in for its KV cache: the dense model of the index of about that size with the largest.

    If there is none of about that size, the next larger one, else the largest. None if the index has no dense model.
    For known active parameters, one with about as many in all and active, if there is any.
    """
    size = assumed.parameters
    one_of_each: dict[int | str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: -entry.uses):
        if entry.basis is Basis.EXACT and entry.forms and ModelPurpose.EMBEDDING not in entry.kinds:
            one_of_each.setdefault(entry.geometry or entry.id, entry)
    dense = [
        (entry.parameters, entry)
        for entry in one_of_each.values()
        if entry.parameters and entry.parameters == entry.active_parameters
    ]
    by_size = sorted(dense, key=lambda candidate: candidate[0])
    about = [entry for count, entry in dense if size / ABOUT <= count <= size * ABOUT]
    about = about[:MOST_COMPARED]
    alike = [entry for entry in one_of_each.values() if _is_alike(assumed, entry)][:MOST_COMPARED]
    next_larger = [entry for count, entry in by_size if count > size][:1]
    largest = [entry for _, entry in by_size[-1:]]
    load = Load(context_tokens=COMPARED_TOKENS)
    because = LAYERS_UNKNOWN if assumed.is_known else "only the name is known"
    for group in (alike, about, next_larger, largest):
        candidates = []
        for entry in group:
            with suppress(EdgekitError):
                model = open_entry(entry, default_engine().name).model
                lines = _cache_lines(model.geometry, load)
                candidates.append((sum(line.size_bytes for line in lines), entry.id, model))
        if candidates:
            _, name, model = max(candidates, key=lambda candidate: candidate[0])
            geometry = replace(
                model.geometry,
                # no expert is placed by itself: the weights are those of another model
                layers=tuple(replace(layer, experts=None) for layer in model.geometry.layers),
                native_context=None,
                trained_context=None,
                basis=Basis.ASSUMED,
                because=f"{because}: assumes those of {name}",
            )
            stand_in = Model(header=model.header, geometry=geometry)
            return AssumedChoice(
                assumed=replace(assumed, geometry=geometry), stand_in=stand_in, stand_in_name=name
            )
    return None


def _is_alike(assumed: AssumedModel, entry: Entry) -> bool:
    """Whether both have about as many parameters, in all and active."""
    active = assumed.active_parameters
    if active in {None, assumed.parameters} or not entry.parameters or not entry.active_parameters:
        return False
    sizes, actives = (assumed.parameters, entry.parameters), (active, entry.active_parameters)
    return max(sizes) <= ABOUT * min(sizes) and max(actives) <= ABOUT_ACTIVE * min(actives)
