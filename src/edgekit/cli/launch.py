"""`run` and `serve`: the request, the notices on standard error, an answer or a chat, a server until it ends."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgekit.app import run
from edgekit.app.run import (
    Compared,
    DoesNotFitError,
    EngineMessage,
    Forced,
    Starting,
    WeightsChosen,
    catalog_name,
)
from edgekit.bill.types import Load
from edgekit.catalog.names import split_quant
from edgekit.cli.engine_commands import SAMPLING_FLAGS, SERVE_PORT
from edgekit.cli.input import check_unicode, read_prompt
from edgekit.cli.options import (
    DEFAULT_NEW_TOKENS,
    reach_of,
    read_host,
    read_plain,
    screen,
)
from edgekit.cli.output import ReaderGoneError, say, say_json, show
from edgekit.engines import engine_named, startable
from edgekit.engines.chat import Fitted, Message, Prompt, Sampling, Talker, Written, fit_prompt
from edgekit.engines.flags import CONTEXT, read, read_flags, read_number
from edgekit.engines.process import LARGEST_PORT, check_port, ending_in_order, is_loopback
from edgekit.engines.program import Address, Ended, RunOptions
from edgekit.errors import (
    ContextTooLargeError,
    EngineError,
    MemoryPressureError,
    TextError,
    UsageError,
)
from edgekit.plan.choice import check_users
from edgekit.report.check import check_json, check_text
from edgekit.report.headline import headline
from edgekit.report.json import json_text
from edgekit.report.run import (
    answer_json,
    comparison_text,
    ended_json,
    ready_json,
    verdict_text,
    written_text,
)
from edgekit.request import Request, Session
from edgekit.sources.local import is_here
from edgekit.units import format_download, parse_size

if TYPE_CHECKING:
    from edgekit.sources.download import Download

    Confirm = Callable[[Download], bool]
    Event = WeightsChosen | Starting | Forced | Compared | EngineMessage
    from edgekit.app.answers import Check
    from edgekit.engines.program import Server, Up


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
        found = check_json(error.check)
        told = json.dumps(found) + "\n" if in_one_line else json_text(found)
        return told, error.exit_code
    sys.stderr.write(check_text(error.check, screen(sys.stderr, colour=False)))
    return "", error.exit_code


_ENDS = frozenset({"/exit", "/quit", "/bye"})
_RESET = frozenset({"/reset", "/clear"})


def run_model(arguments: argparse.Namespace) -> tuple[str, int]:
    """Write the answer as it comes, or chat if there is no prompt. Returns the JSON and the exit code."""
    sampling = sampling_of(arguments)
    prompt = read_prompt(arguments)
    max_tokens = read_number("--max-tokens", arguments.max_tokens, least=1)
    if prompt is None and arguments.json:
        raise UsageError("--json needs a prompt: -p TEXT or -f FILE")
    reference, request = read_request(arguments, "run")
    new_tokens = max_tokens or DEFAULT_NEW_TOKENS
    notices = StderrNotices(quiet=arguments.quiet or arguments.json)
    try:
        with reach_of(arguments, quiet=notices.quiet) as reach:
            session = Session(reach=reach, confirm=download_limit(arguments), notify=notices.show)
            # Before the prompt is counted, only what cannot hold any prompt is refused.
            job = run.job_of(prompt, 1, new_tokens)
            judged, weights = run.fetch(reference, request, session, job=job)
        with run.run(judged, weights, session, prompt=prompt, new_tokens=new_tokens) as (
            up,
            judged,
        ):
            writer = _Writer(talker=up.talker, request=request, sampling=sampling, notices=notices)
            if prompt is None:
                _converse(writer, arguments.system, max_tokens)
                return "", 0
            if not arguments.json:
                _print_answer(writer, prompt, new_tokens)
                return "", 0
            written = Written()
            text = "".join(writer.pieces(writer.fitted(prompt, new_tokens), written))
            found = answer_json(judged.check, text, written, rows=up.rows)
            return json_text(found), 0
    except DoesNotFitError as error:
        return refusal(error, as_json=arguments.json)
    except ReaderGoneError:
        return "", 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """An engine that is up, and how it is to write."""

    talker: Talker
    request: Request
    sampling: Sampling
    notices: StderrNotices

    def fitted(self, prompt: Prompt, max_tokens: int | None) -> Fitted:
        """Which part of the prompt is read, and how much can be written."""
        tokens = self.talker.tokens(prompt)
        if self.talker.reads_beyond:
            return Fitted(tokens=tuple(tokens), max_tokens=max_tokens)
        return fit_prompt(
            tokens,
            window_tokens=self.talker.window_tokens,
            max_tokens=max_tokens,
            sinks=self.request.sinks,
            rolling=self.request.rolling,
        )

    def pieces(self, fitted: Fitted, written: Written) -> Iterator[str]:
        most = fitted.max_tokens
        with closing(
            self.talker.write(fitted.tokens, self.sampling, max_tokens=most, into=written)  # type: ignore[type-var]  # both are generators
        ) as pieces:
            yield from pieces


# --- one question


def _print_answer(writer: _Writer, prompt: Prompt, new_tokens: int) -> None:
    fitted = writer.fitted(prompt, new_tokens)
    if fitted.note:
        writer.notices.say(fitted.note)
    written, piece = Written(), "\n"
    for piece in writer.pieces(fitted, written):
        show(piece)
    if not piece.endswith("\n"):
        show("\n")
    writer.notices.say(written_text(written, max_tokens=new_tokens))


# --- a conversation


def _converse(writer: _Writer, system: str | None, max_tokens: int | None) -> None:
    """Until its end. Ctrl-C stops an answer; where nothing is being said it ends the conversation."""
    first = () if system is None else (Message(role="system", content=system),)
    messages, notices = first, writer.notices
    notices.say(
        f"chat with a context of {writer.talker.window_tokens:,} tokens;"
        " /reset clears the history, /exit or Ctrl-D ends it, Ctrl-C stops an answer"
    )
    while (line := _next_line()) is not None:
        if line in _ENDS:
            return
        if line in _RESET:
            messages = first
            notices.say("forgotten")
            continue
        asked = (*messages, Message(role="user", content=line))
        try:
            check_unicode("what you typed", line)
            said = _reply(writer, asked, max_tokens)
        except ContextTooLargeError as error:
            notices.warn(f"{error}; or /reset")
            continue
        except (TextError, UsageError) as error:
            notices.warn(str(error))
            continue
        messages = (*asked, Message(role="assistant", content=said))


def _next_line() -> str | None:
    """What a person types next; None at the end."""
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            show("\n")
            return None
        if line:
            return line


def _reply(writer: _Writer, messages: tuple[Message, ...], max_tokens: int | None) -> str:
    said: list[str] = []
    try:
        for piece in writer.pieces(writer.fitted(Prompt(messages=messages), max_tokens), Written()):
            said.append(piece)
            show(piece)
    except KeyboardInterrupt:
        show(" [stopped]")
    show("\n")
    return "".join(said)


def run_serve(arguments: argparse.Namespace) -> tuple[str, int]:
    """Returns when the server has ended; an end that was asked for is not an error."""
    reference, request = read_request(arguments, "serve")
    port = read_plain("--port", arguments.port, most=LARGEST_PORT)
    at = Address(
        host=read_host(arguments.host),
        port=SERVE_PORT if port is None else port,
        api_key=(arguments.api_key or os.environ.get("LLAMA_API_KEY") or "").strip() or None,
        alias=arguments.alias or "",
    )
    notices = StderrNotices(quiet=arguments.quiet or arguments.json)
    check_port(at.host, at.port)  # before minutes of download and loading
    _check_protected(at, arguments, notices)
    try:
        with reach_of(arguments, quiet=notices.quiet) as reach:
            session = Session(reach=reach, confirm=download_limit(arguments), notify=notices.show)
            judged, weights = run.fetch(reference, request, session)
        with ending_in_order(), run.serve(judged, weights, session, at) as up:
            return _until_its_end(up, judged.check, arguments, notices)
    except DoesNotFitError as error:
        return refusal(error, as_json=arguments.json, in_one_line=True)


def _check_protected(at: Address, arguments: argparse.Namespace, notices: StderrNotices) -> None:
    """UsageError where others could use the server without a key, unless that is what was asked for."""
    if at.api_key is not None or is_loopback(at.host):
        return
    if not arguments.insecure:
        raise UsageError(
            f"on {at.host} anyone on the network could use the server, and one request can use all memory:"
            " give --api-key, or --insecure to serve without a key (docs/run.md)"
        )
    notices.warn(f"anyone who can reach {at.host} can use this server without a key (--insecure)")


def _announce(up: Up, server: Server, check: Check, arguments: argparse.Namespace) -> None:
    if arguments.json:
        say_json(
            ready_json(
                check,
                address=server.address,
                pid=server.pid,
                version=up.version,
                idle_bytes=None if server.idle is None else server.idle.resident_bytes,
                rows=up.rows,
            )
        )
        return
    say(f"{server.address}  (OpenAI clients: base_url={server.address}/v1)")


def _until_its_end(
    up: Up, check: Check, arguments: argparse.Namespace, notices: StderrNotices
) -> tuple[str, int]:
    """Raises EngineError or MemoryPressureError where the end was not asked for."""
    server, guard = up.server, up.guard
    if server is None or guard is None:
        raise TypeError("this engine does not serve")
    as_json = arguments.json
    try:
        _announce(up, server, check, arguments)  # its reader may ask for the end at once
        ended = server.wait()
    except (KeyboardInterrupt, SystemExit) as end:
        notices.say("stopping")
        ended = server.stop("stopped on request")
        _tell_end(ended, as_json=as_json)
        code = end.code if isinstance(end, SystemExit) else 0
        return "", 0 if code in {0, 128 + 15, None} else int(code or 0)
    if ended is None:
        raise EngineError("llama.cpp neither started nor exited")
    kind = MemoryPressureError if guard.starved else EngineError
    why = guard.reason or f"{ended.why}: {ended.last_words}"
    if not as_json:
        raise kind(why)
    _tell_end(ended, as_json=True)
    notices.warn(why)
    return "", kind.exit_code


def _tell_end(ended: Ended, *, as_json: bool) -> None:
    if as_json:
        say_json(
            ended_json(
                why=ended.why,
                exit_code=ended.exit_code,
                signal=ended.signal,
                last_words=ended.last_words,
            )
        )


def sampling_of(arguments: argparse.Namespace) -> Sampling:
    """UsageError that names the flag."""
    given = {}
    for field, (names, _, parse, _) in SAMPLING_FLAGS.items():
        text = getattr(arguments, field)
        if text is None:
            continue
        try:
            given[field] = parse(text)
        except UsageError as error:
            raise UsageError(f"{names[-1]}: {error}") from error
    return Sampling(**given)  # type: ignore[arg-type]  # each is read as its field wants it
