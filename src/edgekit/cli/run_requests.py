"""What argparse found for `run` and `serve` -> the request. Prints progress and refusals."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgekit.app.published import catalog_name
from edgekit.app.run import (
    Compared,
    DoesNotFitError,
    EngineMessage,
    Forced,
    Starting,
    WeightsChosen,
)
from edgekit.bill.types import Load
from edgekit.catalog.naming import split_quant
from edgekit.cli.listening import read_plain
from edgekit.cli.reach_options import screen_width
from edgekit.cli.tiers import read_purpose
from edgekit.engines import engine_named, startable
from edgekit.engines.flags import CONTEXT, read, read_flags, read_number
from edgekit.engines.program import RunOptions
from edgekit.errors import UsageError
from edgekit.plan.tasks import check_users
from edgekit.report.bars import glyphs_for
from edgekit.report.check_text import check_text
from edgekit.report.headline import headline
from edgekit.report.run_text import comparison_text, verdict_text
from edgekit.request import Request
from edgekit.sources.folders import is_here
from edgekit.units import format_download, parse_size

if TYPE_CHECKING:
    from edgekit.sources.download import Download

    Confirm = Callable[[Download], bool]
    Event = WeightsChosen | Starting | Forced | Compared | EngineMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class StderrNotices:
    """Lines about the work, on standard error."""

    quiet: bool

    def show(self, event: Event) -> None:
        """What happens while the engine is started."""
        match event:
            case WeightsChosen(name, mix, repository):
                self.say(f"{name} at {mix}, from {repository}")
            case Starting(check):
                self.say(verdict_text(check))
            case Forced(check):
                self.warn(
                    f"{headline(check.result)}. Starting anyway (--force): it may swap, fail to allocate, or be killed"
                )
            case Compared(engine, up, problem):
                self.say(comparison_text(engine, up))
                outside = [row for row in up.rows if not row.within]
                parts = ", ".join(f"{row.part} {row.difference_bytes:+,} B" for row in outside)
                if outside:
                    self.warn(
                        f"the estimate differs from what {engine} {up.version} allocated: {parts}"
                    )
                if problem:
                    self.warn(f"the difference could not be saved: {problem}")
            case EngineMessage(text, is_warning):
                (self.warn if is_warning else self.say)(text)

    def say(self, sentence: str) -> None:
        if not self.quiet and sentence and sys.stderr is not None:
            print(sentence, file=sys.stderr, flush=True)

    def warn(self, sentence: str) -> None:
        """Shown even with --quiet."""
        if sys.stderr is not None:
            print(f"edgekit: {sentence}", file=sys.stderr, flush=True)


def read_request(arguments: argparse.Namespace, verb: str) -> tuple[str, Request]:
    """The model and what `run` or `serve` is asked for, on one engine.

    UsageError for what makes no sense, before anything is fetched.
    """
    request = Request.from_argv(arguments)
    engines = tuple(engine.name for engine in startable(verb))
    if len(request.engines) > 1:
        raise UsageError(f"run and serve use one engine: --engine {' or '.join(engines)}")
    engine = request.engine or engines[0]
    program = engine_named(engine).program(verb)
    if request.users is not None:
        check_users(request.users, engine)
        values = request.values(engine)
        if values.get(CONTEXT.key) == 0:
            raise UsageError("--users needs a context for each user: -c N")
        load = Load(context_tokens=values.get(CONTEXT.key))
        together = engine_named(engine).load_for_users(load, request.users, 0)
        values = engine_named(engine).values_for_users(values, request.users, together)
        context = values.pop(CONTEXT.key, None)
        request = replace(request.with_flags(engine, values), context=context)
    if arguments.sinks is not None and not arguments.rolling:
        raise UsageError("--sinks only works with a rolling context: add --rolling")
    budget = getattr(arguments, "budget", None)  # run has one, serve does not
    if budget is not None and not program.has_budget:
        raise UsageError("--budget only works with the built-in engine: add --engine stream")
    settled = program.settled(
        RunOptions(
            rolling=arguments.rolling,
            sinks=arguments.sinks,
            threads=arguments.threads,
            alone=verb == "run",
        )
    )
    own_threads = "threads" in settled  # a flag of the engine's own
    reference = _at_quant(arguments.model, request.quant)
    flags = {**read_flags(engine_named(engine).flags, settled), **request.flags.get(engine, {})}
    return reference, replace(
        request.with_flags(engine, flags),
        quant=None,  # of the reference
        users=None,  # among the flags
        sinks=read_number("--sinks", arguments.sinks) or 0,
        rolling=arguments.rolling,
        force=arguments.force,
        threads=None if own_threads else read_plain("--threads", arguments.threads, least=1),
        budget_bytes=None if budget is None else read("--budget", parse_size, budget),
        latency=read_purpose(getattr(arguments, "latency", None)),
    )


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


def download_limit(arguments: argparse.Namespace) -> Confirm | None:
    """A repository that was named is downloaded, up to --download-up-to; for a catalog name the user is asked first."""
    if arguments.no_download:
        return None
    limit = arguments.download_up_to
    most = None if limit is None else read("--download-up-to", parse_size, limit)

    def agreed(download: Download) -> bool:
        return most is None or download.size_bytes <= most

    known = catalog_name(arguments.model) is not None
    return _asking_first(arguments, arguments.model, agreed) if known else agreed


def _asking_first(
    arguments: argparse.Namespace, name: str, confirm: Confirm | None
) -> Confirm | None:
    """`confirm` after the user agreed: with --yes or --download-up-to on the command line, else at the terminal."""
    if confirm is None or arguments.yes or arguments.download_up_to is not None:
        return confirm

    def ask(download: Download) -> bool:
        what = f"{download.label}, {format_download(download.size_bytes)}, to {download.folder}"
        if not (sys.stdin is not None and sys.stdin.isatty()):
            raise UsageError(f"{name} is not on this machine. To download {what}, add --yes")
        sys.stderr.write(f"Download {what}? [Y/n] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"", "y", "yes"}:
            raise UsageError("nothing was downloaded")
        return confirm(download)

    return ask


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
