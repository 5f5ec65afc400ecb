"""One model, machine and engine -> its quantisations, the largest first: each as `check --quant` judges it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from edgekit.app.check import Check, Unanswered, check_named
from edgekit.app.open import ResolvedModel, open_named, quantised
from edgekit.bill.types import Start, Status, Variant, Verdict
from edgekit.engines import engine_named
from edgekit.engines.choices import AS_NAMED
from edgekit.engines.protocol import Engine
from edgekit.errors import UsageError
from edgekit.index.quality import NOTHING, Loss, weights_loss
from edgekit.machine.types import Machine
from edgekit.model.inspect import count_parameters
from edgekit.plan.choice import download_bytes, runs_on
from edgekit.request import Request, Session
from edgekit.sources.quants import SHORT_MIXES
from edgekit.sources.types import Origin

MOST_ROWS = (
    32  # of a repository with more files, the largest are left out; each takes 0.05 to 0.4 s
)
ORIGINAL = "original"  # the weights as the publisher released them
FROM_ITS_NAME = "the size of this file is estimated from its name: its header was not read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One quantisation of the model, with the answer of `check`."""

    quant: str  # "Q4_K_M", "4 bit", "FP8", ORIGINAL
    answer: Check | Unanswered = field(repr=False)
    is_chosen: bool  # by `check` without --quant
    flags: Mapping[str, str]  # the fields of check and fit that choose it
    repository: str = ""  # on the hub, with this quantisation; "": none is known
    size_bytes: int | None = None  # of the weights as stored, without an image projector
    bits: float | None = None  # per weight, of that size
    loss: Loss | None = None  # None: unknown
    because: str = ""  # where the size comes from, if no header states it

    @property
    def result(self) -> Verdict | None:
        """The verdict; None if the engine refuses it."""
        return self.answer.result if isinstance(self.answer, Check) else None

    @property
    def status(self) -> Status:
        return Status.FAILED if self.result is None else self.result.status

    @property
    def download_bytes(self) -> int | None:
        """What is downloaded; None if it is on this machine, or the size is unknown."""
        if not isinstance(self.answer, Check) or not self.answer.is_remote:
            return None
        return self.size_bytes if self.answer.is_assumed else download_bytes(self.answer.result)

    @property
    def runs_on(self) -> str:
        """'GPU', '2 GPUs', 'GPU + CPU' or 'CPU'; '' if it does not load."""
        return "" if self.result is None or self.result.failed else runs_on(self.result)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantLadder:
    """The quantisations of a model on one machine and engine."""

    label: str
    reference: str
    engine: str
    version: str  # of the engine's rules
    machine: Machine = field(repr=False)
    rungs: tuple[Rung, ...]
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> Rung:
        """What `check` chooses without --quant."""
        return next(rung for rung in self.rungs if rung.is_chosen)


def ladder(reference: str, request: Request, session: Session) -> QuantLadder:
    """The quantisations of a model. Raises EdgekitError if it cannot be read, or not be checked at all."""
    return ladder_named(open_named(reference, session, assume=True), request, session)


def ladder_named(resolved: ResolvedModel, request: Request, session: Session) -> QuantLadder:
    """`ladder` for a model that is open already.

    A quantisation in the request, or in the model's name, adds a rung if it is not one of the usual ones. Raises
    EdgekitError if `check` has no answer without a quantisation, and UsageError if the engine has none of that name.
    """
    if len(request.engines) > 1:
        raise UsageError("--ladder works for one engine: name it with --engine")
    request = replace(request, machine=request.find_machine())
    free = replace(resolved, quant=None)
    plain = _without_quant(request)
    session.tell(f"checking {resolved.name}")
    first = _answer(resolved, plain, session)
    if isinstance(first, Unanswered):
        raise first.error
    engine = first.result.engine
    rules, plain = engine_named(engine), replace(plain, engines=(engine,))
    usual = _variants(free, engine)
    chosen = _chosen_name(first.result)
    answers: dict[str, tuple[Check | Unanswered, Variant | None]] = {}
    for variant in usual[:MOST_ROWS]:
        if variant.name != chosen:
            session.tell(f"checking {resolved.name} at {variant.name}")
            at_quant = _at(free, engine, variant)
            answers[variant.name] = (_answer(at_quant, plain, session), variant)
    by_name = {variant.name: variant for variant in usual}
    answers[chosen] = (first, by_name.get(chosen))
    for name in _requested(resolved, request, engine):
        if name not in answers and len(usual) > 1:
            answer = _answer(quantised(free, name), plain, session)
            if isinstance(answer, Unanswered) and isinstance(answer.error, UsageError):
                raise answer.error  # no quantisation of this engine has that name
            answers[name] = (answer, None)
    parameters = _parameters(first)
    rungs = [
        _rung(name, answer, variant, free, rules, is_chosen=name == chosen, parameters=parameters)
        for name, (answer, variant) in answers.items()
    ]
    if len(rungs) == 1:  # nothing to choose
        rungs = [replace(rungs[0], flags={})]
    elif resolved.quant is not None and resolved.entry is not None:  # the name states another one
        named = {"model": resolved.entry.id}
        rungs = [replace(rung, flags={**named, **rung.flags}) for rung in rungs]
    places = {variant.name: place for place, variant in enumerate(usual)}
    rungs.sort(key=lambda rung: (-(rung.size_bytes or 0), places.get(rung.quant, len(places))))
    notes = list(resolved.notes)
    if len(usual) > MOST_ROWS:
        notes.append(f"{len(usual) - MOST_ROWS} more quantisations are not listed")
    return QuantLadder(
        label=first.bill.label,
        reference=resolved.name,
        engine=engine,
        version=first.bill.version,
        machine=first.result.machine,
        rungs=tuple(rungs),
        notes=tuple(notes),
    )


def _without_quant(request: Request) -> Request:
    """The request without a quantisation of the weights."""
    flags = {
        engine: {
            key: value for key, value in values.items() if key != engine_named(engine).quant_key
        }
        for engine, values in request.flags.items()
    }
    return replace(request, quant=None, flags=flags)


def _requested(resolved: ResolvedModel, request: Request, engine: str) -> Iterator[str]:
    """The quantisations that the request and the model's name state, in the engine's spelling."""
    flag = request.flags.get(engine, {}).get(engine_named(engine).quant_key)
    for name in (request.quant, resolved.quant, flag):
        if isinstance(name, str) and name:
            yield SHORT_MIXES.get(name.upper(), name.upper())


def _answer(resolved: ResolvedModel, request: Request, session: Session) -> Check | Unanswered:
    """The only answer of `check`, without what would change it."""
    return check_named(resolved, request, session, with_changes=False)[0]


def _variants(resolved: ResolvedModel, engine: str) -> tuple[Variant, ...]:
    """The weights to list, the most accurate first; empty if only a name is known."""
    if resolved.assumed is not None:
        if not resolved.assumed.assumed.is_known:
            return ()
        return engine_named(engine).variants(resolved.assumed.stand_in)
    opened = resolved.opened(engine)
    return resolved.variants(opened, engine, Start())


def _chosen_name(result: Verdict) -> str:
    return result.quantization if result.variant is None else result.variant.name


def _at(resolved: ResolvedModel, engine: str, variant: Variant) -> ResolvedModel:
    """The model for a check at the quantisation of this variant."""
    if (
        variant.name == AS_NAMED
    ):  # as it was published: no flag says so, and nothing else is to be chosen
        found = replace(resolved.opened(engine), mix=AS_NAMED)
        return replace(resolved, found=found)
    return quantised(resolved, _flag_value(variant, engine))


def _flag_value(variant: Variant, engine: str) -> str:
    """The value of --quant that chooses the variant."""
    return str(variant.flags.get(engine_named(engine).quant_key, variant.name))


def _parameters(check: Check) -> int | None:
    geometry = check.bill.geometry
    counted = None if geometry is None else count_parameters(geometry)
    return None if counted is None else counted[0]


def _rung(
    name: str,
    answer: Check | Unanswered,
    variant: Variant | None,
    resolved: ResolvedModel,
    rules: Engine,
    *,
    is_chosen: bool,
    parameters: int | None,
) -> Rung:
    """One row, with what is known about its weights."""
    size_bytes = _stored_bytes(answer, rules)
    shown, loss = name, _loss(name, resolved)
    if name == AS_NAMED:
        shown, loss = _as_published(resolved, rules.name)
    flags = {"quant": name if variant is None else _flag_value(variant, rules.name)}
    other_file = variant is not None and bool(variant.reference and variant.changes)
    return Rung(
        quant=shown,
        answer=answer,
        is_chosen=is_chosen,
        flags={} if name == AS_NAMED else flags,
        repository=_repository(name, answer, variant, resolved, rules),
        size_bytes=size_bytes,
        bits=size_bytes * 8 / parameters if size_bytes and parameters else None,
        loss=loss,
        because=FROM_ITS_NAME if other_file and not is_chosen else "",
    )


def _stored_bytes(answer: Check | Unanswered, rules: Engine) -> int | None:
    """The size of the weights as stored; None if unknown."""
    if isinstance(answer, Unanswered):
        return None
    result = answer.result
    if answer.is_assumed or result.variant is None or answer.bill.geometry is None:
        return result.estimate.weights_bytes or None

    lines = tuple(line for line in result.estimate.lines if line.part != "projector")
    alone = replace(result.estimate, lines=lines)
    return rules.download_bytes(result.variant.model, result.way.setup, alone)


def _as_published(resolved: ResolvedModel, engine: str) -> tuple[str, Loss | None]:
    """The name and the loss of weights without a stated quantisation."""
    if resolved.assumed is not None:
        mix = resolved.assumed.assumed.mix
        return mix, weights_loss(mix)
    opened = resolved.opened(engine)
    packed = opened.model.header.quantization
    if packed is None:
        return (ORIGINAL, NOTHING) if opened.model.header.config else (AS_NAMED, None)
    if resolved.files is None:  # the index has the publisher's own repository
        return ORIGINAL, NOTHING
    name = f"{packed.bits:g} bit" if packed.mlx and packed.bits else packed.method
    return name, weights_loss(name)


def _loss(name: str, resolved: ResolvedModel) -> Loss | None:
    """What this quantisation costs, against the weights that the publisher released."""
    if name == AS_NAMED:
        return None
    entry = resolved.entry
    native = "MXFP4" if entry is not None and entry.size("MXFP4_MOE") is not None else None
    return weights_loss(name, native=native)


_ON_HUB = frozenset({Origin.HUB, Origin.HUB_CACHE})


def _repository(
    name: str,
    answer: Check | Unanswered,
    variant: Variant | None,
    resolved: ResolvedModel,
    rules: Engine,
) -> str:
    """The hub repository with this quantisation; '' if none is known, or the model is on this machine."""
    files = resolved.files
    if files is not None and files.origin not in _ON_HUB:
        return ""
    has_it = variant is not None and (bool(variant.reference) or not variant.changes)
    if files is not None and has_it:
        return files.label.partition(":")[0]
    if variant is not None and variant.reference:
        return variant.reference
    label = resolved.entry.id if resolved.entry is not None else resolved.name
    if isinstance(answer, Check) and files is not None:
        label = answer.bill.label
    return rules.published_at(label, name)
