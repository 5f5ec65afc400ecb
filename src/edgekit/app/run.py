"""`run` and `serve`: a request -> a verdict, the weights on this machine, and a running engine.

Events are passed to `Session.notify`: the NamedTuples below.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from edgekit.app.attachments import image_name
from edgekit.app.calibrate import remember_rows
from edgekit.app.check import Check, check_named, check_opened
from edgekit.app.estimate import NEXT_TO_MODEL, projector_header
from edgekit.app.open import ResolvedModel, open_named
from edgekit.app.published import find_published, index_match, open_published
from edgekit.bill.spill import Purpose
from edgekit.bill.types import Job, Start
from edgekit.engines import startable
from edgekit.engines.commands import visible_cards
from edgekit.engines.flags import companions_in
from edgekit.engines.program import Address, EngineStart, LocalWeights, OwnModel
from edgekit.errors import EdgekitError, SourceError, UsageError
from edgekit.index.repositories import original_repository
from edgekit.index.types import ModelPurpose
from edgekit.machine.probes import detect
from edgekit.machine.types import Machine, MemoryLimit
from edgekit.model import open_model
from edgekit.request import Request, Session
from edgekit.sources.download import LocalGguf, find_weights, local_files, require_consent
from edgekit.sources.types import Container, Origin, Reach

if TYPE_CHECKING:
    from edgekit.app.programs import ChosenProgram
    from edgekit.engines.chat import Image, Prompt
    from edgekit.engines.program import EngineProgram, RunningEngine, Server, Starter
    from edgekit.index.types import Entry
    from edgekit.model import OpenModel


COUNTED_BYTES = 2048  # a longer prompt is tokenized, which takes a second
MESSAGE_TOKENS = 16  # of a chat template around a message; in those known up to 9
TOOLS_TOKENS = 1024  # of a chat template around the tools; in those known up to 600
_EMBEDS = (
    "{0} is an embedding model and cannot chat: use edgekit embed {0} TEXT, or edgekit serve {0}"
)


_RANKS = "{0} is a reranking model and cannot chat: use edgekit serve {0}, which answers /v1/rerank"


class WeightsChosen(NamedTuple):
    """These weights are used, because only a name of the catalog was given."""

    name: str
    mix: str
    repository: str


class Starting(NamedTuple):
    """The engine is about to be started."""

    check: Check


class Forced(NamedTuple):
    """The model does not fit, but is started anyway."""

    check: Check


class Compared(NamedTuple):
    """The engine has started and reported what it allocated."""

    engine: str
    running: RunningEngine
    problem: str  # why a difference could not be saved; "" if it was saved or there is none


class EngineMessage(NamedTuple):
    text: str
    is_warning: bool = False


class DoesNotFitError(EdgekitError):
    """The model does not fit. `check` has the numbers, and what would fit."""

    exit_code = 3

    def __init__(self, check: Check) -> None:
        self.check = check
        super().__init__(f"{check.bill.label} does not fit")


# --- verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict on a model, with the request, model and session that it was computed from."""

    request: Request
    chosen: ChosenProgram
    opened: OpenModel = field(repr=False)
    check: Check
    session: Session = field(repr=False)

    def judge_again(self, job: Job | None) -> Judged:
        """Judge again for another job, with the memory that is free now."""
        return judge(self.request, self.chosen, self.opened, job, self.session)

    def refuse_or_warn(self) -> None:
        """Raises DoesNotFitError if the model does not fit; with --force only warns about the risk."""
        if self.check.result.can_load:
            return
        if not self.request.force:
            raise DoesNotFitError(self.check)
        self.session.notify(Forced(self.check))

    def still_fits(self) -> None:
        """Raises DoesNotFitError if the context that was chosen does not fit in the memory that is free now."""
        request = self.request
        if request.force:
            return
        if request.context is None:
            request = replace(request, context=self.check.result.load.context_tokens)
        now = judge(request, self.chosen, self.opened, None, self.session)
        if now.check.result.failed:
            raise DoesNotFitError(now.check)


def judge(
    request: Request, chosen: ChosenProgram, opened: OpenModel, job: Job | None, session: Session
) -> Judged:
    """The verdict for the memory that is free now. A model that does not fit is not an error here."""
    session = replace(session, text_only=True, program=chosen.installation)
    engine = chosen.engine
    request = request.with_flags(
        engine.name, {**engine.run_flags, **request.flags.get(engine.name, {})}
    )
    here = _on_this_machine(request, job, chosen)
    check = check_opened(opened, chosen.engine.name, here, session)
    return Judged(request=request, chosen=chosen, opened=opened, check=check, session=session)


def machine_for(request: Request, chosen: ChosenProgram) -> Machine:
    """The machine as it is now and as the program uses it, with --budget as a limit of its memory.

    On a machine with GPUs the limit is for each of them, unless the program has only RAM.
    """
    machine, budget = chosen.on_machine(detect()), request.budget_bytes
    if budget is None:
        return machine
    if not chosen.program.has_budget:  # it is for the models: the reserve is in addition
        reserve = request.reserve_bytes
        if reserve is None:
            reserve = max(each.reserve_bytes for each in chosen.engine.budgets(machine))
        budget += reserve
    cards = tuple(
        replace(device, free_bytes=min(device.free_bytes, budget)) for device in machine.devices
    )
    if cards and not chosen.program.has_budget and not any(card.unified for card in cards):
        return replace(machine, devices=cards)
    if machine.host is None:
        return machine
    limit = MemoryLimit(name="--budget", limit_bytes=budget, used_bytes=0)
    return replace(machine, host=replace(machine.host, limits=(*machine.host.limits, limit)))


def _on_this_machine(request: Request, job: Job | None, chosen: ChosenProgram) -> Request:
    machine = machine_for(request, chosen)
    return replace(request, machine=machine, job=None if request.context is not None else job)


# --- the model


def fetch(
    reference: str,
    request: Request,
    chosen: ChosenProgram,
    session: Session,
    *,
    job: Job | None = None,
) -> tuple[Judged, LocalWeights]:
    """Judge by the header, download if needed, and judge again by the files themselves.

    The request has one engine. Raises DoesNotFitError, and UsageError for a model without weights to run.
    """
    published, opened = _open(reference, request, chosen, session)
    files, known = opened.files, chosen.engine.known_projector
    own = chosen.program.own_model(
        published[0] if published else reference, files, request.values(chosen.engine.name)
    )
    has_projector = bool(files.projectors if files is not None else known(opened, {}))
    if has_projector and own is not None:
        request = _with_projector_flag(request, chosen)  # the program loads it without being asked
    if not has_projector and _loads_projector_next_to_model(request, chosen):
        raise _no_projector(reference)
    request = _to_embed(request, chosen, opened)
    judged = judge(request, chosen, opened, job, session)
    judged.refuse_or_warn()
    chosen.program.with_limits(  # raises before anything is downloaded
        judged.check.result, chosen.installation
    )
    if own is not None:
        return judged, _own_weights(own, judged)
    weights = _find_files(reference, published, judged)
    if published:
        judged = judge(request, chosen, open_model(weights.model), job, session)
        judged.refuse_or_warn()
    return judged, weights


def with_projector(
    request: Request, chosen: ChosenProgram, images: tuple[Image, ...], *, from_conversation: bool
) -> Request:
    """The request for prompts with these images: a projector next to the model is loaded, unless one was named.

    `from_conversation`: none is from --image. Raises UsageError if the engine does not read such images.
    """
    engine = chosen.engine
    if not engine.image_types:
        able = " or ".join(other.name for other in startable("run") if other.image_types)
        if from_conversation:
            raise UsageError(
                f"this conversation has images: {engine.name} takes text only, use --engine {able}"
            )
        raise UsageError(f"--image needs --engine {able}: {engine.name} takes text only")
    for image in images:
        if image.media_type not in engine.image_types:
            known = ", ".join(sorted(map(image_name, engine.image_types)))
            raise UsageError(
                f"{engine.name} does not read {image_name(image.media_type)} images: convert it to {known}"
            )
    return _with_projector_flag(request, chosen)


def _with_projector_flag(request: Request, chosen: ChosenProgram) -> Request:
    """The request with the projector next to the model, unless one was named."""
    engine, key = chosen.engine.name, _projector_key(chosen)
    if not key or key in request.values(engine):
        return request
    given = request.flags.get(engine, {})
    return request.with_flags(engine, {**given, key: NEXT_TO_MODEL})


def check_tools(chosen: ChosenProgram, tools: tuple[Mapping[str, Any], ...]) -> None:
    """Raises UsageError if there are tools, and EdgeKit cannot give them to this engine."""
    if tools and not chosen.engine.calls_tools:
        able = " or ".join(engine.name for engine in startable("run") if engine.calls_tools)
        raise UsageError(
            f"--tools needs --engine {able}: {chosen.engine.name} does not support tools"
        )


def takes_images(chosen: ChosenProgram, weights: LocalWeights) -> bool:
    """Whether prompts for this engine may have images."""
    is_own = bool(weights.name)  # of the program, which has its projector too
    has_projector = is_own or weights.projector is not None or not _projector_key(chosen)
    return bool(chosen.engine.image_types) and has_projector


def _projector_key(chosen: ChosenProgram) -> str:
    """The key of the engine's flag for a projector; "": a model of the engine has its projector inside."""
    flags = chosen.engine.flags
    return next((flag.key for flag in flags if flag.companion == "projector"), "")


def _loads_projector_next_to_model(request: Request, chosen: ChosenProgram) -> bool:
    companions = companions_in(chosen.engine.flags, request.values(chosen.engine.name))
    return companions.get("projector") == NEXT_TO_MODEL


def _no_projector(reference: str) -> UsageError:
    return UsageError(
        f"{reference} has no image projector (an mmproj file) next to it: if it is a vision model, name one with"
        " --mmproj FILE (edgekit download gets it with the model); else choose a vision model (edgekit search"
        " --task vision)"
    )


def _to_embed(request: Request, chosen: ChosenProgram, opened: OpenModel) -> Request:
    """The request, with the engine's flags for embeddings if the model is made for them, or for reranking."""
    geometry = opened.model.geometry
    if not (geometry.embeds or geometry.ranks):
        return request
    engine = chosen.engine
    flags = dict.fromkeys(engine.embedding_start(Start()).fixed_flags, True)
    return request.with_flags(engine.name, {**flags, **request.flags.get(engine.name, {})})


def _open(
    reference: str, request: Request, chosen: ChosenProgram, session: Session
) -> tuple[tuple[str, ...], OpenModel]:
    """The repositories to download the model from, and the model with its header read. Downloads nothing.

    There are repositories only for a catalog name whose weights are not on this machine; the header of a GGUF is then
    generated from the catalog.
    """
    match = index_match(reference)
    if match is None:
        return (), _require_runnable(open_named(reference, session), chosen)
    entry = match.entry
    if ModelPurpose.EMBEDDING in entry.kinds and not chosen.serves:
        raise UsageError(_EMBEDS.format(reference))
    if ModelPurpose.VISION not in entry.kinds and _loads_projector_next_to_model(request, chosen):
        raise _no_projector(reference)
    if not chosen.engine.loads_gguf:
        if match.note:
            session.notify(EngineMessage(match.note))
        repository = published_repository(entry, match.quant, request, chosen)
        session.notify(WeightsChosen(entry.id, "as stored", repository))
        return (repository,), _require_runnable(open_named(repository, session), chosen)
    stored: OpenModel | None = None
    with suppress(SourceError):  # look in Ollama, LM Studio and the hub's cache on this machine
        stored = open_model(reference, reach=replace(session.reach, network=False))
    if stored is not None:
        return (), _require_runnable(
            replace(open_named(f"catalog:{entry.id}"), found=stored), chosen
        )
    if match.note:
        session.notify(EngineMessage(match.note))
    here = _on_this_machine(request, None, chosen)
    published, opened = open_published(entry, match.quant, here)
    session.notify(WeightsChosen(entry.id, opened.mix, published[0].partition(":")[0]))
    return published, opened


def published_repository(
    entry: Entry, quant: str | None, request: Request, chosen: ChosenProgram
) -> str:
    """The repository of an entry that an engine loads as it is: the one that `check` chooses for this machine.

    Raises UsageError if none is known.
    """
    resolved = open_named(f"catalog:{entry.id}", quant=quant)
    (answer,) = check_named(
        resolved, _on_this_machine(request, None, chosen), Session(reach=Reach(network=False))
    )
    if not isinstance(answer, Check):
        raise answer.error
    variant = answer.result.variant
    repository = (variant.reference if variant is not None else "") or original_repository(entry.id)
    if not repository:
        raise UsageError(
            f"no known repository has {entry.id} for {chosen.engine.name}: name one (edgekit search {entry.id})"
        )
    return repository


def _require_runnable(resolved: ResolvedModel, chosen: ChosenProgram) -> OpenModel:
    """The opened model. Raises UsageError for anything but the files of a language model that the engine loads."""
    opened = resolved.found
    if resolved.entry is not None and resolved.from_index:
        raise UsageError(
            f"{resolved.from_index}. The index knows it as {resolved.entry.id}: that name downloads a GGUF file of it"
        )
    if opened is None or opened.files is None:
        raise UsageError(f"{resolved.name} has no weights to run: give a file or a repository")
    if opened.files.origin is Origin.SAMPLE:
        raise UsageError(f"{resolved.name} is a sample header without weights: use edgekit check")
    geometry = opened.model.geometry
    if geometry.ranks and not chosen.serves:
        raise UsageError(_RANKS.format(resolved.name))
    if not (geometry.causal or (chosen.serves and geometry.embeds)):
        raise UsageError(_EMBEDS.format(resolved.name))
    is_gguf = opened.files.container is Container.GGUF
    if chosen.engine.loads_gguf and not is_gguf:
        raise UsageError(
            f"{resolved.name} is {opened.files.container.value}, but {chosen.engine.name} needs a GGUF file: convert"
            " it (convert_hf_to_gguf.py FOLDER, then llama-quantize), or name a repository of GGUF files"
        )
    if is_gguf and not chosen.engine.loads_gguf:
        raise UsageError(
            f"{resolved.name} is a GGUF file, but {chosen.engine.name} loads safetensors: name the model's repository,"
            " or leave out --engine and --with"
        )
    return opened


def _own_weights(own: OwnModel, judged: Judged) -> LocalWeights:
    """The model in the program's own store, if it is there already or the user lets the program download it."""
    session, files = judged.session, judged.opened.files
    if not own.is_here:
        parts = () if files is None else (*files.weights, *files.projectors[:1])
        known_bytes = sum(file.size_bytes or 0 for file in parts)
        require_consent(
            own.name,
            size_bytes=known_bytes or judged.check.bill.estimate.weights_bytes,
            folder=own.store,
            reach=session.reach,
            confirm=session.confirm,
        )
    return LocalWeights(model=Path(), name=own.name)


def _find_files(reference: str, published: tuple[str, ...], judged: Judged) -> LocalWeights:
    """The files of the model, its draft model, adapters and projector. Downloads remote ones."""
    request, session = judged.request, judged.session
    engine = judged.chosen.engine
    if not engine.loads_gguf:
        name = published[0] if published else reference
        found = local_files(name, session.reach, session.confirm, to_run=True)
        with closing(found.weights[0].open()) as first:
            return LocalWeights(model=Path(first.name).parent)
    several = judged.chosen.program.loads_shards

    def find(reference: str, *, projector: bool = False) -> LocalGguf:
        return find_weights(
            reference,
            reach=session.reach,
            confirm=session.confirm,
            several=several,
            projector=projector,
        )

    companions = companions_in(engine.flags, request.values(engine.name))
    drafter, projector = companions.get("drafter"), companions.get("projector")
    sees = projector == NEXT_TO_MODEL
    model = (
        find_published(reference, published, session, several=several, projector=sees)
        if published
        else find(reference, projector=sees)
    )
    projector_path = model.projector if sees else None
    if sees and projector_path is None:
        raise UsageError(
            f"the image projector of {reference} is not on this machine: edgekit download {reference}, or name one"
            " with --mmproj FILE"
        )
    if projector is not None and not sees:
        projector_path = find(projector).path
    return LocalWeights(
        model=model.path,
        drafter=None if drafter is None else find(drafter).path,
        adapters=tuple(find(name).path for name in companions.get("adapters", ())),
        projector=projector_path,
    )


# --- engines at work


@contextmanager
def run(
    judged: Judged, weights: LocalWeights, *, prompt: Prompt | None, new_tokens: int
) -> Iterator[tuple[RunningEngine, Judged]]:
    """An engine with a context for the prompt and the answer, until the end of the block. `prompt` None: a chat.

    Some engines count the tokens of a prompt only while they run. Until then their number is estimated, and if the
    context turns out too short, the engine is started again with a longer one.
    """

    def job(prompt_tokens: int) -> Job | None:
        return job_of(prompt, prompt_tokens, new_tokens)

    with ExitStack() as stack:
        starter = judged.chosen.program.open(weights.model, stack, judged.request.budget_bytes)
        tokens = None if prompt is None else starter.tokens_in(prompt)
        # No text has more tokens than bytes, which is a good enough bound for a short prompt.
        bound = 0 if prompt is None else prompt.size_bytes + _tokens_outside_text(judged, prompt)
        judged = judged.judge_again(job(bound if tokens is None else tokens))
        sizes_context = tokens is None and judged.request.context is None
        uncounted = prompt if sizes_context else None
        if uncounted is not None:
            counted = _count_tokens(judged, weights.model, uncounted)
            judged = judged if counted is None else judged.judge_again(job(counted))
        judged.refuse_or_warn()
        address = Address(
            chats=prompt is None or not prompt.is_plain,
            api_key=random_key(judged.chosen.program),
        )
        while True:
            with ExitStack() as attempt:
                running = attempt.enter_context(_start_engine(judged, starter, weights, address))
                is_too_short, prompt_tokens = False, 0
                if uncounted is not None:
                    # no tokens: the engine counts a prompt with images or tools only while it answers
                    prompt_tokens = len(running.generator.tokens(uncounted) or ())
                    window, native = (
                        running.generator.window_tokens,
                        judged.check.result.native_context,
                    )
                    may_grow = native is None or window < native
                    is_too_short = may_grow and prompt_tokens + new_tokens > window
                if not is_too_short:
                    stack.push(attempt.pop_all())  # the engine runs until the caller's block ends
                    break
            judged = judged.judge_again(job(prompt_tokens))
            judged.refuse_or_warn()
        yield running, judged


def random_key(program: EngineProgram) -> str | None:
    """A key for an engine that only EdgeKit may use; None if the engine cannot demand one."""
    return secrets.token_urlsafe(24) if program.has_keys else None


@contextmanager
def serve(
    judged: Judged,
    weights: LocalWeights,
    address: Address,
    begun: Callable[[Server], None] = lambda _process: None,
) -> Iterator[RunningEngine]:
    """A server, until the end of the block. `begun` gets its process before the model is loaded, and may raise."""
    with ExitStack() as stack:
        starter = judged.chosen.program.open(weights.model, stack, None)
        yield stack.enter_context(_start_engine(judged, starter, weights, address, begun))


def job_of(prompt: Prompt | None, prompt_tokens: int, new_tokens: int) -> Job | None:
    """The job that the context is sized for; None for a chat, whose length is unknown."""
    return None if prompt is None else Job(prompt_tokens=prompt_tokens, new_tokens=new_tokens)


def _count_tokens(judged: Judged, path: Path, prompt: Prompt) -> int | None:
    """The tokens of a prompt, so that it is not refused for its bytes alone.

    None for a short prompt that fits even so, and if the tokenizer cannot be used here.
    """
    if prompt.size_bytes <= COUNTED_BYTES and judged.check.result.can_load:
        return None
    with suppress(ImportError, EdgekitError):
        from edgekit.runtime import open_text

        with open_text(path) as engine:
            texts = (engine.tokenizer.encode_plain(text) for text in prompt.texts if text)
            return sum(map(len, texts)) + _tokens_outside_text(judged, prompt)
    return None


def _tokens_outside_text(judged: Judged, prompt: Prompt) -> int:
    """The most tokens of a prompt outside its texts: images, and the chat template around tools.

    0 for a prompt of text, which the engine counts itself.
    """
    if prompt.is_text:
        return 0
    tokens = MESSAGE_TOKENS * len(prompt.messages) + (TOOLS_TOKENS if prompt.tools else 0)
    if prompt.images:
        rules, opened, reach = judged.chosen.engine, judged.opened, judged.session.reach
        name = companions_in(rules.flags, judged.request.values(rules.name)).get("projector")
        projector = None if name is None else projector_header(name, opened, rules, reach)
        tokens += len(prompt.images) * rules.image_tokens(projector)
    return tokens


@contextmanager
def _start_engine(
    judged: Judged,
    starter: Starter,
    weights: LocalWeights,
    address: Address,
    begun: Callable[[Server], None] = lambda _process: None,
) -> Iterator[RunningEngine]:
    """A running engine, until the end of the block. What it reports is compared with the bill."""
    request, result, session = judged.request, judged.check.result, judged.session
    chosen, engine = judged.chosen, judged.chosen.engine.name
    session.notify(Starting(judged.check))
    start = EngineStart(
        installation=chosen.installation,
        weights=weights,
        label=judged.check.bill.label,
        verdict=result,
        setup=chosen.program.with_limits(result, chosen.installation),
        values=request.values(engine),
        sinks=request.sinks,
        rolling=request.rolling,
        threads=request.threads,
        purpose=request.latency or Purpose.TEXT,
        keep_spare=request.keep_spare,
        environment=visible_cards(result.way, chosen.engine.devices(result.machine)),
        address=address,
        recheck=judged.still_fits,
        begun=begun,
        say=lambda text: session.notify(EngineMessage(text)),
        warn=lambda text: session.notify(EngineMessage(text, is_warning=True)),
    )
    with starter.start(start) as running:
        if running.rows:
            problem = ""
            try:  # `edgekit hardware` shows the predictions that were outside their bounds
                remember_rows(
                    judged.check.bill.label,
                    running.rows,
                    engine=running.program or engine,
                    version=running.version,
                )
            except SourceError as error:
                problem = str(error)
            session.notify(Compared(engine, running, problem))
        yield running
