"""The bill of the engine on this machine instead of our own: on request, or if our rules do not know the model."""

from __future__ import annotations

from dataclasses import replace

from edgekit.app.open import choose_file
from edgekit.bill.types import CacheChoice, Load, MemoryEstimate, Price, Setup, Task
from edgekit.engines import engine_named
from edgekit.engines.choices import as_named, stored_quant
from edgekit.engines.protocol import Engine
from edgekit.errors import EngineError, NewArchitectureError, UsageError
from edgekit.model import OpenModel
from edgekit.plan.choice import NOTHING_FITS, Candidate, Choice, pinned_candidate
from edgekit.plan.fit import Fitting, first_placement, price_of
from edgekit.request import Request, Session

_USUAL_TOKENS = 32 * 1024  # the context if none was requested: SPEC A4's first
_MOST_QUESTIONS = 24  # each is a start of the engine; the longest context takes about ten
_ANY_STEP = 1  # of SPEC A4's list: a load that was not searched for


def check_asking(request: Request) -> None:
    """Raises UsageError if another machine is described, whose engine cannot be asked."""
    if not request.ask_engine:
        return
    machine = request.machine
    described = request.devices or any(
        field is not None for field in (request.ram, request.vram, request.cpu)
    )
    if described or (machine is not None and machine.what_if):
        raise UsageError(
            "--ask-engine uses the engine on this machine: leave out --device, --ram, --vram and --cpu"
        )


def asked_estimate(
    opened: OpenModel,
    rules: Engine,
    price: Price,
    load: Load,
    setup: Setup,
    *,
    request: Request,
    session: Session,
) -> MemoryEstimate | None:
    """The engine's own bill of this load; None if it is not to be asked. Raises what `price` raises."""
    check_asking(request)
    try:
        own = price(load, setup)
    except NewArchitectureError as error:
        if not session.may_ask:
            raise
        session.tell(f"starting a dry run of {rules.title}")
        return _ask_about_unknown(opened, rules, error, session)(load, setup)
    if not request.ask_engine:
        return None
    session.tell(f"starting a dry run of {rules.title}")
    return rules.ask(opened.model, opened.files, load, setup, own, program=session.program)


def _ask_about_unknown(
    opened: OpenModel, rules: Engine, refusal: NewArchitectureError, session: Session
) -> Price:
    """A function that asks about a model that our rules do not know; if the engine has no answer, they are right."""

    def ask(load: Load, setup: Setup) -> MemoryEstimate:
        try:
            return rules.ask(opened.model, opened.files, load, setup, None, program=session.program)
        except (EngineError, UsageError) as error:
            raise NewArchitectureError(f"{refusal}; asked on this machine: {error}") from error

    return ask


def choose_with_engine(
    opened: OpenModel, task: Task, request: Request, session: Session
) -> tuple[OpenModel, Task, Choice]:
    """`choose_file`, with the engine's bill of the chosen load if it is to be asked.

    A choice without attempts is one load of a model that our rules do not know. Raises EdgekitError.
    """
    check_asking(request)
    try:
        opened, task, choice = choose_file(opened, task, session.reach)
        if not choice.fits:
            _ = choice.candidate.priced  # raises what the engine refuses
    except NewArchitectureError as error:
        choice = _unknown_choice(opened, task, error, session)
        return opened, choice.candidate.task, choice
    return opened, task, _asked_choice(opened, choice, request, session)


def _asked_choice(opened: OpenModel, choice: Choice, request: Request, session: Session) -> Choice:
    """The choice with the engine's bill of the chosen load, if the user wants that."""
    if not request.ask_engine:
        return choice
    candidate = pinned_candidate(choice.candidate) if choice.fits else choice.candidate
    task, priced = candidate.task, candidate.priced
    rules, load = engine_named(task.engine), task.load_of(candidate.tokens)
    setup = priced.placement.setup
    session.tell(f"starting a dry run of {rules.title}")
    asked = rules.ask(
        task.model, opened.files, load, setup, priced.estimate, program=session.program
    )
    with_bill = replace(task, bill=_one_bill(price_of(task), load, setup, asked))
    fitting = Fitting(with_bill, priced.placement)
    return replace(choice, candidate=_judged(replace(candidate, fitting=fitting)))


def _one_bill(price: Price, load: Load, setup: Setup, asked: MemoryEstimate) -> Price:
    """The price, with the engine's bill for the load and setup that it was asked about."""

    def bill(other: Load, other_setup: Setup) -> MemoryEstimate:
        return asked if (other, other_setup) == (load, setup) else price(other, other_setup)

    return bill


def _judged(candidate: Candidate) -> Candidate:
    """The candidate, as one that fits or not by the bill that it has now."""
    fits = candidate.priced.fits
    step = (candidate.step or _ANY_STEP) if fits else NOTHING_FITS
    return replace(candidate, step=step)


def _unknown_choice(
    opened: OpenModel, task: Task, error: NewArchitectureError, session: Session
) -> Choice:
    """One load of a model that our rules do not know, as the engine bills it. Only the longest context is searched for.

    Raises `error` if the engine cannot be asked, or does not know the model either.
    """
    if not session.may_ask or task.machine.what_if:
        raise error
    rules = engine_named(task.engine)
    session.tell(f"starting a dry run of {rules.title}")
    ask = _ask_about_unknown(opened, rules, error, session)
    bills: dict[tuple[Load, Setup], MemoryEstimate] = {}

    def bill(load: Load, setup: Setup) -> MemoryEstimate:
        if (load, setup) not in bills:
            if len(bills) >= _MOST_QUESTIONS:
                raise error
            bills[load, setup] = ask(load, setup)
        return bills[load, setup]

    task = replace(task, bill=bill)
    fitting = Fitting(task, first_placement(task))
    tokens = fitting.requested_tokens or min(fitting.native_tokens, _USUAL_TOKENS)
    stored = stored_quant(opened.files) if opened.files is not None else ""
    (variant,) = as_named(opened.model, opened.mix or stored)
    candidate = Candidate(
        step=_ANY_STEP,
        variant=variant,
        cache=CacheChoice(
            name=rules.cache_name(task.load, fitting.placement.setup), place=0, flags=""
        ),
        fitting=fitting,
        tokens=tokens,
        because="reported for this load only: EdgeKit does not know this architecture",
    )
    return Choice(candidate=pinned_candidate(_judged(candidate)), attempts=())
