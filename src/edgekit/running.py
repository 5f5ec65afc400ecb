"""`run`, `serve` and `verify`: a request -> a verdict, the weights on this machine, and an engine that is up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgekit.app.check import check_opened
from edgekit.app.companions import BESIDE_THE_MODEL, NO_PROJECTOR_SIZE
from edgekit.app.open import ResolvedModel, file_at, open_named, quantised
from edgekit.app.published import catalog_name, find_published, open_published
from edgekit.bill.task import Job
from edgekit.catalog.resolve import resolve
from edgekit.catalog.types import ModelPurpose
from edgekit.engines import engine_named, every_engine
from edgekit.engines.commands import visible_cards
from edgekit.engines.program import Address, LocalWeights, StartRequest, VerifyRequest
from edgekit.engines.spill import Purpose
from edgekit.errors import EdgekitError, SourceError, UsageError
from edgekit.machine import detect
from edgekit.machine.types import Machine, MemoryLimit
from edgekit.report.headline import headline
from edgekit.report.run_text import comparison_text, verdict_text
from edgekit.request import Request, Session, Values, in_order
from edgekit.runtime.remembering import remember_rows
from edgekit.sources.types import Container, Origin, Reach

if TYPE_CHECKING:
    from edgekit.app.answers import Check
    from edgekit.bill.types import Load
    from edgekit.engines.chat import Prompt, Talker
    from edgekit.engines.program import EngineProgram, Starter, Up, Verifier
    from edgekit.engines.protocol import Engine
    from edgekit.engines.sampling import Sampling
    from edgekit.model.open import Opened
    from edgekit.sources.download import Download
    from edgekit.sources.types import ModelFiles

    Confirm = Callable[[Download], bool]

COUNTED_BYTES = 2048  # of a prompt: a longer one is tokenized, which takes a second
_EMBEDS = "{0} is an embedding model and cannot chat: use edgekit embed {0} TEXT"


class Notices(Protocol):
    """Where lines about the work go; the answer itself goes elsewhere."""

    def say(self, sentence: str) -> None: ...
    def warn(self, sentence: str) -> None:
        """Shown even where the user wants quiet."""


class DoesNotFitError(EdgekitError):
    """The verdict is no. `check` has the numbers, and what would fit."""

    exit_code = 3

    def __init__(self, check: Check) -> None:
        self.check = check
        super().__init__(headline(check.result))


# --- requests


def startable(verb: str) -> tuple[Engine, ...]:
    """The engines that EdgeKit can start for `run`, `serve`, `verify` or `calibrate`, preferred first."""
    return tuple(engine for engine in every_engine() if verb in engine.starts_for)


def program_for(verb: str, engine: Engine) -> EngineProgram:
    """UsageError for an engine that EdgeKit does not start for it."""
    program = engine.program()
    if program is None:
        raise UsageError(
            f"edgekit does not start {engine.name} itself: "
            f"edgekit plan MODEL --engine {engine.name} prints its command"
        )
    if verb not in engine.starts_for:
        raise UsageError(
            f"--engine {engine.name} cannot {verb}; use edgekit run --engine {engine.name}"
        )
    return program


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What `run` or `serve` is asked for, before anything is looked at."""

    reference: str
    engine: str
    request: Request = field(repr=False)
    sinks: int
    rolling: bool
    force: bool
    threads: int | None = None
    budget_bytes: int | None = None  # of the whole process
    purpose: Purpose = Purpose.TEXT  # decides how long cold pages may take
    settled: Values = field(default_factory=dict)  # values of flags that the command itself sets
    published: tuple[str, ...] = ()  # hub references of a catalog name, in the order they are tried

    @property
    def program(self) -> EngineProgram:
        return program_for("run", engine_named(self.engine))

    @property
    def values(self) -> dict[str, Any]:
        return in_order(self.engine, {**self.settled, **self.request.values(self.engine)})

    @property
    def context(self) -> int | None:
        """As given; None where EdgeKit sizes the window."""
        found: int | None = self.values.get("context")
        return found

    def at_this_moment(self, job: Job | None) -> Request:
        """For the machine as it is at this moment."""
        flags = {**self.settled, **self.request.flags.get(self.engine, {})}
        return replace(
            self.request.with_flags(self.engine, flags),
            machine=_within(detect(), self.budget_bytes),
            quant=None,
            users=None,
            job=None if self.context is not None else job,
        )


def _within(machine: Machine, budget_bytes: int | None) -> Machine:
    """The machine as it is to a process that may take no more than its budget."""
    host = machine.host
    if budget_bytes is None or host is None:
        return machine
    limit = MemoryLimit(name="--budget", limit_bytes=budget_bytes, used_bytes=0)
    return replace(machine, host=replace(host, limits=(*host.limits, limit)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """What the model is asked, whichever engine runs it."""

    prompt: Prompt | None  # None: a conversation
    system: str | None
    sampling: Sampling
    max_tokens: int | None
    new_tokens: int  # for which room is made: max_tokens, or a default

    def job(self, prompt_tokens: int) -> Job | None:
        """None for a conversation, whose length is not known."""
        if self.prompt is None:
            return None
        return Job(prompt_tokens=prompt_tokens, new_tokens=self.new_tokens)


# --- verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict, and what the engine is started with if it holds."""

    order: RunRequest
    opened: Opened = field(repr=False)
    check: Check
    load: Load
    setup: Any

    def again(self, job: Job | None) -> Judged:
        """For another job, at this moment."""
        return judge_order(self.order, self.opened, job)

    def still_fits(self) -> None:
        """The same start, with the memory that is free at this moment. Raises DoesNotFitError."""
        if self.order.force:
            return
        fixed = {"context": self.load.context_tokens}
        order = replace(self.order, settled={**self.order.settled, **fixed})
        now = judge_order(order, self.opened, None)
        if now.check.result.failed:
            raise DoesNotFitError(now.check)


def judge_order(order: RunRequest, opened: Opened, job: Job | None) -> Judged:
    """The verdict. Nothing is refused yet."""
    session = Session(reach=Reach())
    check = check_opened(opened, order.engine, order.at_this_moment(job), session)
    result = check.result
    return Judged(
        order=order,
        opened=opened,
        check=check,
        load=result.load,
        setup=order.program.limited(result),
    )


def refuse_or_warn(judged: Judged, notices: Notices) -> None:
    """DoesNotFitError with the numbers; with --force only a warning about the risk."""
    result = judged.check.result
    if result.can_load:
        return
    if not judged.order.force:
        raise DoesNotFitError(judged.check)
    notices.warn(
        f"{headline(result)}. Starting anyway (--force): it may swap, fail to allocate, or be killed"
    )


# --- the model


def open_order(
    order: RunRequest, reach: Reach, confirm: Confirm | None, notices: Notices
) -> tuple[RunRequest, Opened]:
    """Only its header. UsageError for what has no weights to run.

    A catalog name whose weights are not on this machine is judged by what the catalog knows; nothing is fetched yet.
    """
    found = catalog_name(order.reference)
    if found is None:
        return order, _runnable(open_named(order.reference, Session(reach=reach, confirm=confirm)))
    entry, quant = found
    stored = _stored(order.reference, reach)
    if stored is not None:
        named = replace(open_named(f"catalog:{entry.id}"), found=stored)
        return order, _runnable(named)
    if ModelPurpose.EMBEDDING in entry.kinds:
        raise UsageError(_EMBEDS.format(order.reference))
    references, opened = open_published(entry, quant, order.at_this_moment(None))
    notices.say(f"{entry.id} at {opened.mix}, from {references[0].partition(':')[0]}")
    return replace(order, published=references), opened


def _stored(name: str, reach: Reach) -> Opened | None:
    """A file of that name that another program has on this machine: Ollama, LM Studio, the hub's cache."""
    from edgekit.model.open import open_model

    try:
        return open_model(name, reach=replace(reach, network=False))
    except SourceError:
        return None


def _runnable(named: ResolvedModel) -> Opened:
    found = named.found
    if found is None or found.files is None:
        raise UsageError(f"{named.name} has no weights to run: give a GGUF file or repository")
    if found.files.origin is Origin.SAMPLE:
        raise UsageError(f"{named.name} is a sample header without weights: use edgekit check")
    if not found.model.geometry.causal:
        raise UsageError(_EMBEDS.format(named.name))
    if found.files.container is not Container.GGUF:
        raise UsageError(
            f"{named.name} is {found.files.container.value}, but run needs a GGUF file: convert it"
            " (convert_hf_to_gguf.py FOLDER, then llama-quantize), or name a repository of GGUF files"
        )
    return found


def weights_of(
    order: RunRequest, opened: Opened, reach: Reach, confirm: Confirm | None
) -> LocalWeights:
    """Remote ones are downloaded, now that the verdict is known."""
    from edgekit.sources.finding import find_weights

    several = order.program.loads_shards

    def found(reference: str) -> Path:
        return find_weights(reference, reach=reach, confirm=confirm, several=several).path

    values = order.values
    drafter, projector = values.get("draft_model"), values.get("mmproj")
    model = (
        find_published(order.reference, order.published, reach, confirm, several=several).path
        if order.published
        else found(order.reference)
    )
    if projector == BESIDE_THE_MODEL:
        projector = _projector_next_to(opened)
    return LocalWeights(
        model=model,
        drafter=None if drafter is None else found(drafter),
        adapters=tuple(found(one) for one in values.get("lora", ())),
        projector=None if projector is None else found(projector),
    )


def _projector_next_to(opened: Opened) -> str:
    files = opened.files
    if files is None:
        raise UsageError(NO_PROJECTOR_SIZE)
    if not files.projectors or files.origin.is_remote:
        raise UsageError("--mmproj auto: no mmproj file was found next to the model; give its path")
    with closing(files.projectors[0].open()) as source:
        return source.name


def fetch(
    order: RunRequest,
    reach: Reach,
    confirm: Confirm | None,
    notices: Notices,
    *,
    job: Job | None = None,
) -> tuple[Judged, LocalWeights]:
    """Judged for `job` by the header, downloaded where needed, and judged again by the file itself."""
    order, opened = open_order(order, reach, confirm, notices)
    judged = judge_order(order, opened, job)
    refuse_or_warn(judged, notices)
    weights = weights_of(order, opened, reach, confirm)
    if order.published:
        from edgekit.model.open import open_model

        judged = judge_order(order, open_model(weights.model), job)
        refuse_or_warn(judged, notices)
    return judged, weights


# --- engines at work


@contextmanager
def answering(
    judged: Judged, weights: LocalWeights, wanted: AnswerRequest, notices: Notices
) -> Iterator[tuple[Up, Judged]]:
    """An engine with a window for the prompt, until the end of the block.

    The window is sized before an engine that serves can count the prompt; where it was too small, it is started again.
    """
    prompt = wanted.prompt
    with ExitStack() as held:
        starter = judged.order.program.open(weights.model, held, judged.order.budget_bytes)
        tokens = None if prompt is None else starter.tokens_in(prompt)
        # No text has more tokens than bytes: a bound that will do for a short prompt.
        bound = 0 if prompt is None else prompt.size_bytes
        judged = judged.again(wanted.job(bound if tokens is None else tokens))
        if tokens is None:
            judged = _counted(judged, weights.model, wanted)
        refuse_or_warn(judged, notices)
        at = Address(chats=prompt is None or not prompt.is_plain)
        while True:
            with ExitStack() as tried:
                up = tried.enter_context(started(judged, starter, weights, at, notices))
                short_of = None if tokens is not None else _too_long(judged, up.talker, wanted)
                if short_of is None:
                    held.push(tried.pop_all())
                    break
            judged = judged.again(short_of)
            refuse_or_warn(judged, notices)
        yield up, judged


@contextmanager
def serving(judged: Judged, weights: LocalWeights, at: Address, notices: Notices) -> Iterator[Up]:
    """A server, until the end of the block."""
    with ExitStack() as held:
        starter = judged.order.program.open(weights.model, held, None)
        yield held.enter_context(started(judged, starter, weights, at, notices))


def _counted(judged: Judged, path: Path, wanted: AnswerRequest) -> Judged:
    """No prompt is refused for its bytes alone: a long one is counted by the file's own tokenizer, if that is here."""
    prompt = wanted.prompt
    if prompt is None or judged.order.context is not None:
        return judged
    if prompt.size_bytes <= COUNTED_BYTES and judged.check.result.can_load:
        return judged
    tokens = None
    with suppress(ImportError, EdgekitError):
        from edgekit.runtime.stream.text import open_text

        with open_text(path) as text:
            texts = (prompt.text, *(one.content for one in prompt.messages))
            tokens = sum(len(text.tokenizer.encode_plain(one)) for one in texts if one)
    return judged if tokens is None else judged.again(wanted.job(tokens))


def _too_long(judged: Judged, talker: Talker, wanted: AnswerRequest) -> Job | None:
    """The job that the window is too short for; None where it is long enough, or was given."""
    if wanted.prompt is None or judged.order.context is not None:
        return None
    tokens = len(talker.tokens(wanted.prompt))
    native = judged.check.result.native_context
    is_whole = native is not None and talker.window_tokens >= native
    if tokens + wanted.new_tokens <= talker.window_tokens or is_whole:
        return None
    return wanted.job(tokens)


@contextmanager
def started(
    judged: Judged, starter: Starter, weights: LocalWeights, at: Address, notices: Notices
) -> Iterator[Up]:
    """Ready until the end of the block, and gone after it. What it reports is compared with the bill."""
    order, result = judged.order, judged.check.result
    notices.say(verdict_text(judged.check))
    request = StartRequest(
        weights=weights,
        label=judged.check.bill.label,
        load=judged.load,
        setup=judged.setup,
        estimate=result.estimate,
        values=order.values,
        sinks=order.sinks,
        rolling=order.rolling,
        threads=order.threads,
        purpose=order.purpose,
        environment=visible_cards(result.way, engine_named(order.engine).devices(result.machine)),
        at=at,
        recheck=judged.still_fits,
        say=notices.say,
        warn=notices.warn,
    )
    with starter.start(request) as up:
        if up.rows:
            notices.say(comparison_text(order.engine, up))
            _remember_differences(judged, up, notices)
        yield up


def _remember_differences(judged: Judged, up: Up, notices: Notices) -> None:
    """A bill that was wrong is recorded: `edgekit hardware` shows it."""
    outside = [row for row in up.rows if not row.within]
    if not outside:
        return
    engine = judged.order.engine
    parts = ", ".join(f"{row.part} {row.difference_bytes:+,} B" for row in outside)
    notices.warn(f"the estimate differs from what {engine} {up.version} allocated: {parts}")
    try:
        remember_rows(judged.check.bill.label, up.rows, engine=engine, version=up.version)
    except SourceError as error:
        notices.warn(f"the difference could not be saved: {error}")


# --- verify


def verify(
    engine: Engine, reference: str, request: VerifyRequest, *, quant: str | None, reach: Reach
) -> tuple[Any, str]:
    """The prediction next to the engine's own figures, and the flags in words."""
    verifier = program_for("verify", engine).verifier(request)
    found = verifier.verify(_files_to_verify(engine, reference, verifier, quant, reach))
    return found, verifier.asked(found)


def _files_to_verify(
    engine: Engine, reference: str, verifier: Verifier, quant: str | None, reach: Reach
) -> ModelFiles:
    """The files of a model. One of the catalog has a header generated from its facts, at Q4_K_M or as requested."""
    from edgekit.engines.quant_names import read_quant
    from edgekit.sources import locate

    found = resolve(reference, lambda source: locate(source, reach=reach))
    if found.found is not None:
        other = None if quant is None else file_at(found, quant)
        if quant is None or (other is None and quant.upper() in found.found.label.upper()):
            return found.found
        if other is None:
            raise UsageError(f"{found.name} has no file at {quant}: verify loads files as they are")
        return locate(other, reach=reach)
    known = ResolvedModel(
        name=found.name, catalog=found.catalog, entry=found.entry, quant=found.quant
    )
    if quant is not None:
        known = quantised(known, quant)
    opened = known.as_file(engine.name)
    model, mix = opened.model, None
    if known.quant is not None:
        mix = read_quant(engine.name, known.quant)
        model = known.opened(engine.name).model
    files = verifier.generated(model, opened.label, mix)
    return replace(files, notes=(f"header generated from the catalog, at {mix or opened.mix}",))
