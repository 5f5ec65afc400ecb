"""An order and a prompt -> an answer, written as it comes; or a conversation."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgekit.bill.task import Job
from edgekit.cli import NobodyReadsError, show
from edgekit.cli.listening import read_plain
from edgekit.cli.reach_options import reach_of
from edgekit.cli.run_command import check_text
from edgekit.cli.run_options import DEFAULT_NEW_TOKENS
from edgekit.cli.running import (
    LLAMACPP,
    STREAM,
    DoesNotFitError,
    Judged,
    Notices,
    RunRequest,
    download_limit,
    judge_order,
    open_downloaded,
    open_order,
    read_order,
    refusal,
    refuse_or_warn,
    weights_of,
)
from edgekit.engines.chat import Fitted, Message, Prompt, Talker, Written, fit_prompt
from edgekit.errors import ContextTooLargeError, TextError, UsageError

if TYPE_CHECKING:
    from edgekit.engines.sampling import Sampling

# A conversation of one: no slots for others, no prompts of others kept.
ALONE = {"parallel": "1", "cache_ram": "0", "ctx_checkpoints": "0"}
_ENDS = frozenset({"/exit", "/quit", "/bye"})
_RESET = frozenset({"/reset", "/clear"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """What is asked of the model, whatever runs it."""

    prompt: Prompt | None  # None: a conversation
    system: str | None
    sampling: Sampling
    max_tokens: int | None

    @property
    def new_tokens(self) -> int:
        return self.max_tokens or DEFAULT_NEW_TOKENS


def answer(arguments: argparse.Namespace, wanted: AnswerRequest) -> tuple[str, int]:
    order = read_order(arguments, engines=(LLAMACPP, STREAM), settled=ALONE)
    told = Notices(quiet=arguments.quiet or arguments.json)
    try:
        with _started(arguments, order, wanted, told) as (talker, judged):
            if wanted.prompt is None:
                _converse(talker, order, wanted, told)
                return "", 0
            return _answer_once(talker, judged, wanted, arguments, told), 0
    except DoesNotFitError as error:
        return refusal(error, as_json=arguments.json)
    except NobodyReadsError:
        return "", 0


@contextmanager
def _started(
    arguments: argparse.Namespace, order: RunRequest, wanted: AnswerRequest, told: Notices
) -> Iterator[tuple[Talker, Judged]]:
    """Judged by the header; downloaded where need be; judged again, with the prompt counted; started.

    Before the prompt is counted nothing is refused but what holds no prompt at all.
    """
    confirm = download_limit(arguments)
    with reach_of(arguments, quiet=told.quiet) as reach:
        order, opened = open_order(order, reach, confirm, told)
        refuse_or_warn(judge_order(order, opened, _at_least(wanted)), told)
        weights = weights_of(order, opened, reach, confirm)
        if order.published:
            opened = open_downloaded(order, opened, weights)
            refuse_or_warn(judge_order(order, opened, _at_least(wanted)), told)
        judged = judge_order(order, opened, _at_most(wanted))
    with ExitStack() as held:
        if order.engine == STREAM:
            from edgekit.cli.streaming import start_stream

            yield start_stream(judged, weights.model, wanted, held, told)
        else:
            from edgekit.cli.llama_starting import start_llama

            threads = read_plain("--threads", arguments.threads, least=1)
            yield start_llama(judged, weights, wanted, held, told, threads=threads)


def _at_least(wanted: AnswerRequest) -> Job | None:
    """A prompt of one token."""
    return None if wanted.prompt is None else Job(prompt_tokens=1, new_tokens=wanted.new_tokens)


def _at_most(wanted: AnswerRequest) -> Job | None:
    """The job, as far as it is known before the prompt is cut: no text has more tokens than bytes."""
    if wanted.prompt is None:
        return None
    return Job(prompt_tokens=wanted.prompt.size_bytes, new_tokens=wanted.new_tokens)


# --- one question


def _answer_once(
    talker: Talker,
    judged: Judged,
    wanted: AnswerRequest,
    arguments: argparse.Namespace,
    told: Notices,
) -> str:
    assert wanted.prompt is not None  # noqa: S101 - else it is a conversation
    fitted = _fitted(talker, judged.order, talker.tokens(wanted.prompt), wanted.new_tokens)
    if fitted.note:
        told.say(fitted.note)
    written, pieces = Written(), []
    for piece in _pieces(talker, fitted, wanted.sampling, written):
        pieces.append(piece)
        if not arguments.json:
            show(piece)
    if arguments.json:
        from edgekit.report.as_json import json_text
        from edgekit.report.run_json import answer_json

        return json_text(answer_json(judged.check, "".join(pieces), written, rows=judged.rows))
    if pieces and not pieces[-1].endswith("\n"):
        show("\n")
    from edgekit.report.run_text import written_text

    told.say(written_text(written, asked=wanted.new_tokens))
    return ""


def _fitted(
    talker: Talker, order: RunRequest, tokens: Sequence[int], new_tokens: int | None
) -> Fitted:
    if talker.reads_beyond:
        return Fitted(tokens=tuple(tokens), max_tokens=new_tokens)
    return fit_prompt(
        tokens,
        window_tokens=talker.window_tokens,
        max_tokens=new_tokens,
        sinks=order.sinks,
        rolling=order.rolling,
    )


def _pieces(talker: Talker, fitted: Fitted, sampling: Sampling, written: Written) -> Iterator[str]:
    with closing(
        talker.write(fitted.tokens, sampling, max_tokens=fitted.max_tokens, into=written)  # type: ignore[type-var]  # both are generators
    ) as pieces:
        yield from pieces


# --- a conversation


def _converse(talker: Talker, order: RunRequest, wanted: AnswerRequest, told: Notices) -> None:
    """Until its end. Ctrl-C stops an answer; where nothing is being said it ends the conversation."""
    first = () if wanted.system is None else (Message(role="system", content=wanted.system),)
    messages = first
    told.say(
        f"chat with a context of {talker.window_tokens:,} tokens;"
        " /reset clears the history, /exit or Ctrl-D ends it, Ctrl-C stops an answer"
    )
    while (line := _next_line()) is not None:
        if line in _ENDS:
            return
        if line in _RESET:
            messages = first
            told.say("forgotten")
            continue
        asked = (*messages, Message(role="user", content=line))
        try:
            check_text("what you typed", line)
            said = _reply(talker, order, asked, wanted)
        except ContextTooLargeError as error:
            told.warn(f"{error}; or /reset")
            continue
        except (TextError, UsageError) as error:
            told.warn(str(error))
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


def _reply(
    talker: Talker, order: RunRequest, messages: tuple[Message, ...], wanted: AnswerRequest
) -> str:
    said: list[str] = []
    try:
        tokens = talker.tokens(Prompt(messages=messages))
        fitted = _fitted(talker, order, tokens, wanted.max_tokens)
        for piece in _pieces(talker, fitted, wanted.sampling, Written()):
            said.append(piece)
            show(piece)
    except KeyboardInterrupt:
        show(" [stopped]")
    show("\n")
    return "".join(said)
