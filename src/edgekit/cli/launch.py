"""`run` and `serve`: read the request, start the engine, then print an answer, chat, or serve until the end."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgekit.app import run
from edgekit.app.programs import ChosenProgram, choose_program
from edgekit.app.published import index_match
from edgekit.app.run import (
    Compared,
    DoesNotFitError,
    EngineMessage,
    Forced,
    Starting,
    WeightsChosen,
)
from edgekit.bill.types import Load
from edgekit.cli import ReaderGoneError, warn
from edgekit.cli.chat import Writer, answer_message, chat
from edgekit.cli.console import open_session, screen
from edgekit.cli.flags import DEFAULT_NEW_TOKENS, read_integer
from edgekit.cli.prompt import images_of, open_transcript, read_prompt, sampling_of, tools_of
from edgekit.engines import startable
from edgekit.engines.chat import GenerationResult, Prompt
from edgekit.engines.flags import CONTEXT, read, read_flags, read_number
from edgekit.engines.process import ending_in_order
from edgekit.engines.program import RunOptions
from edgekit.errors import EdgekitError, RemoteInspectError, UsageError
from edgekit.plan.choice import check_users
from edgekit.report.check import MORE, check_json, check_text, headline
from edgekit.report.json import json_text
from edgekit.report.run import (
    comparison_text,
    differences_words,
    engine_text,
    generation_json,
    verdict_text,
    written_text,
)
from edgekit.request import Request, Session
from edgekit.sources.download import LIGHT_FAILED
from edgekit.sources.local import absolute_reference, is_here
from edgekit.sources.quants import split_quant
from edgekit.units import format_download, parse_size

if TYPE_CHECKING:
    from edgekit.sources.download import Download


@dataclass(frozen=True, slots=True, kw_only=True)
class StderrNotices:
    """Prints what happens while the engine starts, on standard error. Warnings are shown even if it is `quiet`."""

    quiet: bool

    def show(self, event: object) -> None:
        """Print one of the events of app/run.py."""
        match event:
            case WeightsChosen(name, mix, repository):
                self.say(f"{name} at {mix}, from {repository}")
            case Starting(check):
                self.say(verdict_text(check))
            case Forced(check):
                warn(
                    f"{headline(check.result)}. Starting anyway (--force): it may swap, fail to allocate, or be killed"
                )
            case Compared(engine, running, problem):
                self.say(comparison_text(engine, running))
                parts = differences_words(running.rows)
                if parts:
                    warn(
                        f"the estimate differs from what {engine_text(engine, running)} allocated: {parts}"
                    )
                if problem:
                    warn(f"the difference could not be saved: {problem}")
            case EngineMessage(text, is_warning):
                (warn if is_warning else self.say)(text)

    def show_choice(self, chosen: ChosenProgram) -> None:
        """Says which program runs the model if there is more than one, and what that costs."""
        if chosen.note:
            warn(chosen.note)
        elif len(chosen.engine.programs) > 1 and chosen.installation.path:
            self.say(f"using {chosen.installation.program} ({chosen.installation.path})")

    def say(self, sentence: str) -> None:
        if sentence:
            self.write(f"{sentence}\n")

    def write(self, text: str) -> None:
        if not self.quiet and sys.stderr is not None:
            print(text, end="", file=sys.stderr, flush=True)


def read_request(
    model: str, arguments: argparse.Namespace, verb: str, session: Session
) -> tuple[str, Request, ChosenProgram]:
    """The model, the request for one engine, and the program that runs it. Raises UsageError; downloads nothing."""
    request = Request.from_argv(arguments)
    if len(request.engines) > 1:
        names = " or ".join(engine.name for engine in startable(verb))
        raise UsageError(f"run and serve use one engine: --engine {names}")
    reference = at_quant(model, request.quant)
    wanted = vars(arguments)["with"]
    chosen = choose_program(verb, reference, session, engine=request.engine, wanted=wanted)
    rules, program = chosen.engine, chosen.program
    engine = rules.name
    request = replace(request, engines=(engine,))
    if request.users is not None:  # the context and the sequences for all users become flags
        check_users(request.users, engine)
        values = request.values(engine)
        if values.get(CONTEXT.key) == 0:
            raise UsageError("--users needs a context for each user: -c N")
        load = Load(context_tokens=values.get(CONTEXT.key))
        load = rules.load_for_users(load, request.users, 0)
        values = rules.values_for_users(values, request.users, load)
        context = values.pop(CONTEXT.key, None)
        request = replace(request.with_flags(engine, values), context=context)
    if arguments.sinks is not None and not arguments.rolling:
        raise UsageError("--sinks only works with a rolling context: add --rolling")
    budget = arguments.budget
    if budget is not None and verb == "run" and not program.has_budget:
        raise UsageError("--budget only works with the built-in engine: add --engine stream")
    start_flags = program.flags_for(
        RunOptions(
            rolling=arguments.rolling,
            sinks=arguments.sinks,
            threads=arguments.threads,
            alone=verb == "run",
        ),
        chosen.installation,
    )
    has_threads = "threads" in start_flags  # the engine has a flag for the number of threads
    flags = {**read_flags(rules.flags, start_flags), **request.flags.get(engine, {})}
    request = replace(
        request.with_flags(engine, flags),
        quant=None,  # the reference names it
        users=None,  # the flags are for all users
        sinks=read_number("--sinks", arguments.sinks) or 0,
        rolling=arguments.rolling,
        force=arguments.force,
        threads=None if has_threads else read_integer("--threads", arguments.threads, least=1),
        budget_bytes=None if budget is None else read("--budget", parse_size, budget),
    )
    return reference, request, chosen


def at_quant(reference: str, quant: str | None) -> str:
    """The repository or the name at this quantisation. Raises UsageError for a file, which is loaded as it is."""
    quant = quant_of(reference, quant)
    return reference if quant is None else f"{reference}:{quant}"


def quant_of(reference: str, quant: str | None) -> str | None:
    """The value of --quant; None if the reference states the same. Raises UsageError as `at_quant` does."""
    if quant is None:
        return None
    if is_here(reference):
        raise UsageError(f"--quant {quant}: a file is loaded as it is; give a repository instead")
    stated = split_quant(reference)[1]
    if stated is not None and stated.upper() != quant.upper():
        raise UsageError(f"{reference} and --quant {quant} name two quantisations: give one")
    return quant if stated is None else None


def download_limit(
    arguments: argparse.Namespace, names: Sequence[str]
) -> Callable[[Download], bool]:
    """The function that allows downloads up to --download-up-to; with --no-download, one that refuses all.

    Without --yes or --download-up-to it asks at the terminal. Without a terminal a repository is downloaded, because
    it was named; a name of the index is not.
    """
    if arguments.no_download:
        return _refuse_download
    text = arguments.download_up_to
    limit = None if text is None else read("--download-up-to", parse_size, text)
    name = next((name for name in names if index_match(name) is not None), "")
    has_terminal = sys.stdin is not None and sys.stdin.isatty()
    asks = not arguments.yes and limit is None and (has_terminal or name)

    def confirm(download: Download) -> bool:
        if not asks:
            return limit is None or download.size_bytes <= limit
        description = (
            f"{download.label}, {format_download(download.size_bytes)}, to {download.folder}"
        )
        if not has_terminal:
            raise UsageError(f"{name} is not on this machine. To download {description}, add --yes")
        sys.stderr.write(f"Download {description}? [Y/n] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"", "y", "yes"}:
            raise UsageError("nothing was downloaded")
        return True

    return confirm


def _refuse_download(download: Download) -> bool:
    """For --no-download. Raises RemoteInspectError for weights; False if only the header could not be read alone."""
    if download.lacking == LIGHT_FAILED:
        return False
    by_hand = f", or run edgekit download {download.label}" if download.lacking else ""
    raise RemoteInspectError(
        f"{download.label} is not on this machine, and --no-download is set: leave it out{by_hand}"
    )


def stop_code(stop: BaseException) -> int:
    """The exit code of a server that was stopped: Ctrl-C and SIGTERM are not errors."""
    code = stop.code if isinstance(stop, SystemExit) else 0
    return 0 if code in {0, 128 + signal.SIGTERM, None} else int(str(code))


def refusal(
    error: DoesNotFitError,
    *,
    as_json: bool,
    in_one_line: bool = False,
    budget: str | None = None,
) -> tuple[str, int]:
    """The report on a model that does not fit: JSON on standard output, text on standard error.

    `budget`: the value of --budget, which may be the reason.
    """
    if as_json:
        report = check_json(error.check)
        text = json.dumps(report) + "\n" if in_one_line else json_text(report)
        return text, error.exit_code
    more = f"edgekit check MODEL {MORE}"
    sys.stderr.write(check_text(error.check, screen(sys.stderr, colour=False), more=more))
    if budget is not None:
        warn(f"the limit is --budget {budget}: raise it, or leave it out")
    return "", error.exit_code


@ending_in_order()
def run_model(arguments: argparse.Namespace) -> tuple[str, int]:
    """Write the answer as it comes, or chat if there is no prompt. Returns the JSON and the exit code."""
    sampling, images, tools = sampling_of(arguments), images_of(arguments), tools_of(arguments)
    transcript = open_transcript(arguments)
    before = transcript.model  # "": a new conversation
    if arguments.model is None:
        if not before:
            raise UsageError(
                "name a model: edgekit run MODEL (--resume NAME continues with its own)"
            )
        arguments = argparse.Namespace(**{**vars(arguments), "model": before})
    prompt = read_prompt(arguments, transcript.messages, images, tools)
    max_tokens = read_number("--max-tokens", arguments.max_tokens, least=1)
    if prompt is None and arguments.json:
        raise UsageError("--json needs a prompt: -p TEXT or -f FILE")
    new_tokens = max_tokens or DEFAULT_NEW_TOKENS
    notices = StderrNotices(quiet=arguments.quiet or arguments.json)
    try:
        confirm = download_limit(arguments, [arguments.model])
        with open_session(
            arguments, quiet=notices.quiet, confirm=confirm, notify=notices.show
        ) as session:
            reference, request, chosen = read_request(arguments.model, arguments, "run", session)
            notices.show_choice(chosen)
            transcript.model = absolute_reference(reference)
            if before and before != transcript.model:
                notices.say(f"the last answer of this conversation was from {before}")
            run.check_tools(chosen, tools)
            every_image = (*images, *Prompt(messages=transcript.messages).images)
            if every_image:
                request = run.with_projector(
                    request, chosen, every_image, from_conversation=not images
                )
            # The prompt is not counted yet: only a model that cannot hold any prompt is refused.
            job = run.job_of(prompt, 1, new_tokens)
            judged, weights = run.fetch(reference, request, chosen, session, job=job)
        with run.run(judged, weights, prompt=prompt, new_tokens=new_tokens) as (running, judged):
            writer = Writer(
                generator=running.generator,
                request=request,
                sampling=sampling,
                tools=tools,
                takes_images=run.takes_images(chosen, weights),
                say=notices.say,
                show_reasoning=notices.write,
            )
            if prompt is None:
                chat(writer, transcript, images, max_tokens)
                return "", 0
            fitted, written = writer.fitted(prompt, new_tokens), GenerationResult()
            shown = list[str]()
            if arguments.json:
                shown += writer.pieces(fitted, written)
            else:
                notices.say(fitted.note)
                writer.print_answer(fitted, written, shown)
                notices.say(written_text(written, max_tokens=new_tokens))
            text = "".join(shown)
            exit_code = 0
            if not prompt.is_plain:
                try:
                    transcript.add(prompt.messages[-1], answer_message(text, written))
                except EdgekitError as error:  # the answer is printed all the same
                    warn(f"not saved: {error}")
                    exit_code = error.exit_code
            if not arguments.json:
                return "", exit_code
            answer = generation_json(judged.check, text, written, rows=running.rows)
            return json_text(answer), exit_code
    except DoesNotFitError as error:
        return refusal(error, as_json=arguments.json, budget=arguments.budget)
    except ReaderGoneError:
        return "", 0
