"""Arguments of `run` and `serve` -> a model that fits, its weights on this machine, and how it is started."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.app.answers import Check
from edgekit.app.check import check_opened
from edgekit.app.companions import BESIDE_THE_MODEL, NO_PROJECTOR_SIZE
from edgekit.app.open import ResolvedModel, open_named
from edgekit.bill.task import Job
from edgekit.catalog.naming import split_quant
from edgekit.catalog.types import ModelPurpose
from edgekit.cli.published import asking_first, catalog_name, find_published, open_published
from edgekit.cli.reach_options import screen_width
from edgekit.cli.tiers import read_purpose
from edgekit.engines import engine_named
from edgekit.engines.flags import read, read_flags, read_number
from edgekit.engines.spill import Purpose
from edgekit.errors import EdgekitError, SourceError, UsageError
from edgekit.machine import detect
from edgekit.machine.types import Machine, MemoryLimit
from edgekit.plan.growth import growth_limits
from edgekit.plan.making import check_users
from edgekit.report.bars import glyphs_for
from edgekit.report.check_text import check_text
from edgekit.report.headline import headline
from edgekit.request import Request, Session, Values, in_order
from edgekit.sources.folders import is_here
from edgekit.sources.types import Container, Origin, Reach
from edgekit.units import parse_size

if TYPE_CHECKING:
    from edgekit.bill.types import Load
    from edgekit.engines.llamacpp.verify.types import ComparedRow
    from edgekit.model.open import Opened
    from edgekit.sources.download import Download

LLAMACPP, STREAM, AUTO = "llama.cpp", "stream", "auto"
_OTHERS = {
    "vllm": "edgekit plan MODEL --engine vllm prints its command",
    "mlx": "edgekit plan MODEL --engine mlx prints its command",
}
Confirm = Callable[["Download"], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    """What is said beside the answer: on standard error, one line at a time."""

    quiet: bool

    def say(self, sentence: str) -> None:
        if not self.quiet and sentence and sys.stderr is not None:
            print(sentence, file=sys.stderr, flush=True)

    def warn(self, sentence: str) -> None:
        """Said to whoever wants quiet, too."""
        if sys.stderr is not None:
            print(f"edgekit: {sentence}", file=sys.stderr, flush=True)


class DoesNotFitError(EdgekitError):
    """The verdict is no. The message is the whole report, with what would fit."""

    exit_code = 3

    def __init__(self, check: Check) -> None:
        self.check = check
        super().__init__(headline(check.result))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What the command line asks for, before anything is looked at."""

    reference: str
    engine: str
    request: Request = field(repr=False)
    sinks: int
    rolling: bool
    force: bool
    budget_bytes: int | None = None  # of the whole process
    purpose: Purpose = Purpose.TEXT  # who waits for cold pages
    settled: Values = field(default_factory=dict)  # values of flags that the command itself sets
    published: tuple[str, ...] = ()  # hub references of a catalog name, in the order they are tried

    @property
    def values(self) -> dict[str, Any]:
        return in_order(self.engine, {**self.settled, **self.request.values(self.engine)})

    @property
    def context(self) -> int | None:
        """None: it is chosen."""
        found: int | None = self.values.get("context")
        return found

    def asked(self, job: Job | None) -> Request:
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
class Judged:
    """A verdict, and what the engine is started with if it stands."""

    order: RunRequest
    opened: Opened = field(repr=False)
    check: Check
    load: Load
    setup: Any
    rows: tuple[ComparedRow, ...] = ()  # the bill beside what the engine reports, once it is up

    def still_fits(self) -> None:
        """The same start against the memory of this moment. DoesNotFitError where somebody took it meanwhile."""
        if self.order.force:
            return
        fixed = {"context": self.load.context_tokens}
        order = replace(self.order, settled={**self.order.settled, **fixed})
        now = judge_order(order, self.opened, None)
        if now.check.result.failed:
            raise DoesNotFitError(now.check)


def read_order(
    arguments: argparse.Namespace, *, engines: tuple[str, ...], settled: dict[str, Any]
) -> RunRequest:
    """UsageError for what cannot be meant, before anything is fetched."""
    request = Request.from_argv(arguments)
    if len(request.engines) > 1:
        raise UsageError(f"run and serve use one engine: --engine {' or '.join(engines)}")
    engine = request.engine or LLAMACPP
    request = _with_users(request)
    if engine in _OTHERS:
        raise UsageError(f"edgekit does not start {engine} itself: {_OTHERS[engine]}")
    if engine not in engines:
        raise UsageError(f"--engine {engine} cannot serve; use edgekit run --engine {engine}")
    if arguments.sinks is not None and not arguments.rolling:
        raise UsageError("--sinks only works with a rolling context: add --rolling")
    budget = getattr(arguments, "budget", None)  # run has one, serve does not
    if budget is not None and engine != STREAM:
        raise UsageError("--budget only works with the built-in engine: add --engine stream")
    own = _SETTLED[engine](arguments) | (settled if engine == LLAMACPP else {})
    return RunRequest(
        reference=_at_quant(arguments.model, request.quant),
        engine=engine,
        request=request,
        sinks=read_number("--sinks", arguments.sinks) or 0,
        rolling=arguments.rolling,
        force=arguments.force,
        budget_bytes=None if budget is None else read("--budget", parse_size, budget),
        purpose=read_purpose(getattr(arguments, "latency", None)),
        settled=read_flags(engine_named(engine).flags, own),
    )


def _with_users(request: Request) -> Request:
    """llama.cpp with a slot and a context for every user (serve --users N). Raises UsageError."""
    count, context, flags = request.users, request.context, request.flags.get(LLAMACPP, {})
    if count is None:
        return request
    check_users(count, LLAMACPP)
    if "parallel" in flags or flags.get("unified"):
        raise UsageError("--users N means -np N with a context for each user: give one of them")
    if context == 0:
        raise UsageError("--users needs a context for each user: -c N")
    every = None if context is None else context * count
    own = {**flags, "parallel": count, "unified": False}
    return replace(request, context=every, flags={**request.flags, LLAMACPP: own})


def _at_quant(reference: str, quant: str | None) -> str:
    """The repository or the name at this quantisation. UsageError for a file, which is loaded as it is."""
    if quant is None:
        return reference
    if is_here(reference):
        raise UsageError(f"--quant {quant}: a file is loaded as it is; give a repository instead")
    stated = split_quant(reference)[1]
    if stated is not None and stated.upper() != quant.upper():
        raise UsageError(f"{reference} and --quant {quant} name two quantisations: give one")
    return reference if stated is not None else f"{reference}:{quant}"


def _for_llama(arguments: argparse.Namespace) -> dict[str, Any]:
    """The flags that both engines have, as llama.cpp is asked; sinks cost nothing there.

    The bill is that of the llama.cpp that will be started, whatever version is named elsewhere.
    """
    from edgekit.engines.llamacpp.versions import installed_version, version_name

    found = installed_version()
    own = {} if found is None else {"llama_version": version_name(*found)}
    return {**own, "ctx_shift": True} if arguments.rolling else own


def _for_stream(arguments: argparse.Namespace) -> dict[str, Any]:
    """And as the built-in one is."""
    given = {"sinks": arguments.sinks, "threads": arguments.threads}
    found = {name: text for name, text in given.items() if text is not None}
    return {**found, "rolling": True} if arguments.rolling else found


_SETTLED = {LLAMACPP: _for_llama, STREAM: _for_stream}


def open_order(
    order: RunRequest, reach: Reach, confirm: Confirm | None, told: Notices
) -> tuple[RunRequest, Opened]:
    """Its header alone. UsageError for what has no weights to run.

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
    order, opened = open_published(entry, quant, order)
    told.say(f"{entry.id} at {opened.mix}, from {order.published[0].partition(':')[0]}")
    return order, opened


def _stored(name: str, reach: Reach) -> Opened | None:
    """A file of that name that another program has on this machine: Ollama, LM Studio, the hub's cache."""
    from edgekit.model.open import open_model

    try:
        return open_model(name, reach=replace(reach, network=False))
    except SourceError:
        return None


_EMBEDS = "{0} is an embedding model and cannot chat: use edgekit embed {0} TEXT"


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


def judge_order(order: RunRequest, opened: Opened, job: Job | None) -> Judged:
    """The verdict. Nothing is refused yet."""
    check = check_opened(opened, order.engine, order.asked(job), Session(reach=Reach()))
    result = check.result
    setup = result.way.setup
    if order.engine == LLAMACPP:
        named = {"cache_ram": "cache_ram_mib", "ctx_checkpoints": "ctx_checkpoints"}
        limits = {named[key]: number for key, number in growth_limits(result).items()}
        setup = replace(setup, **limits)
    return Judged(
        order=order,
        opened=opened,
        check=check,
        load=result.load,
        setup=setup,
    )


def refuse_or_warn(judged: Judged, told: Notices) -> None:
    """DoesNotFitError with the numbers; with --force a sentence about what is risked."""
    result = judged.check.result
    if result.can_load:
        return
    if not judged.order.force:
        raise DoesNotFitError(judged.check)
    told.warn(
        f"{headline(result)}. Starting anyway (--force): it may swap, fail to allocate, or be killed"
    )


def refusal(error: DoesNotFitError, *, as_json: bool, in_one_line: bool = False) -> tuple[str, int]:
    """The report of a verdict that is no: for programs on standard output, for people on standard error."""
    if as_json:
        import json

        from edgekit.report.as_json import json_text
        from edgekit.report.check_json import check_json

        found = check_json(error.check)
        told = json.dumps(found) + "\n" if in_one_line else json_text(found)
        return told, error.exit_code
    told = check_text(
        error.check,
        width=screen_width(),
        glyphs=glyphs_for(getattr(sys.stderr, "encoding", None)),
    )
    sys.stderr.write(told)
    return "", error.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """Files on this machine: the model, and what is loaded beside it."""

    model: Path
    drafter: Path | None = None
    adapters: tuple[Path, ...] = ()
    projector: Path | None = None


def weights_of(
    order: RunRequest, opened: Opened, reach: Reach, confirm: Confirm | None
) -> ModelWeights:
    """Remote ones are downloaded, now that the verdict is known."""
    from edgekit.sources.finding import find_weights

    def found(reference: str) -> Path:
        return find_weights(reference, reach=reach, confirm=confirm, several=several).path

    several = order.engine == LLAMACPP
    published = find_published(order, reach, confirm, several=several) if order.published else None
    values = order.values
    drafter, projector = values.get("draft_model"), values.get("mmproj")
    if projector == BESIDE_THE_MODEL:
        projector = _beside(opened)
    return ModelWeights(
        model=found(order.reference) if published is None else published.path,
        drafter=None if drafter is None else found(drafter),
        adapters=tuple(found(one) for one in values.get("lora", ())),
        projector=None if projector is None else found(projector),
    )


def open_downloaded(order: RunRequest, opened: Opened, weights: ModelWeights) -> Opened:
    """The file itself in place of what the catalog knows of it, to be judged again."""
    from edgekit.model.open import open_model

    return open_model(weights.model) if order.published else opened


def _beside(opened: Opened) -> str:
    """The projector that lies beside a model on this machine."""
    files = opened.files
    if files is None:
        raise UsageError(NO_PROJECTOR_SIZE)
    if not files.projectors or files.origin.is_remote:
        raise UsageError("--mmproj auto: no mmproj file was found next to the model; give its path")
    with closing(files.projectors[0].open()) as source:
        return source.name


def download_limit(arguments: argparse.Namespace) -> Confirm | None:
    """A repository that was named is downloaded, up to --download-up-to; for a catalog name the user is asked first."""
    if arguments.no_download:
        return None
    limit = arguments.download_up_to
    most = None if limit is None else read("--download-up-to", parse_size, limit)

    def agreed(download: Download) -> bool:
        return most is None or download.size_bytes <= most

    known = catalog_name(arguments.model) is not None
    return asking_first(arguments, arguments.model, agreed) if known else agreed
