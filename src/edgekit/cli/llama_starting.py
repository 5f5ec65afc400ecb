"""A verdict and a file -> llama.cpp, started from it, watched, and told beside its bill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.bill.cache_types import cache_type
from edgekit.bill.task import Job
from edgekit.bill.types import Load
from edgekit.cli.running import Judged, ModelWeights, Notices, judge_order, refuse_or_warn
from edgekit.engines.llamacpp.run.client import Client, LlamaTalker
from edgekit.engines.llamacpp.run.comparison import compare_reported
from edgekit.engines.llamacpp.run.engine import Running, start
from edgekit.engines.llamacpp.run.types import Launch
from edgekit.engines.llamacpp.run.watch import Watch
from edgekit.engines.llamacpp.verify.types import ComparedRow
from edgekit.errors import EngineError, MemoryPressureError, SourceError
from edgekit.plan.visible_cards import visible_cards
from edgekit.report.run_text import beside_text, verdict_text
from edgekit.runtime.remembering import remember_rows

if TYPE_CHECKING:
    from edgekit.cli.answering import AnswerRequest
    from edgekit.engines.chat import Prompt

COUNTED_BYTES = 2048  # of a prompt: beyond it the file's own tokenizer counts, which takes a second
_LAST_MOMENT_S = 2.0  # a server that is gone closes its connections before its end is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = field(default=None, repr=False)
    alias: str = ""
    chats: bool = True  # False: the model's chat format is not wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """A llama.cpp that is up."""

    running: Running
    watch: Watch
    rows: tuple[ComparedRow, ...]


def start_llama(
    judged: Judged,
    weights: ModelWeights,
    wanted: AnswerRequest,
    held: ExitStack,
    told: Notices,
    *,
    threads: int | None,
) -> tuple[LlamaTalker, Judged]:
    """The window is sized before the engine can count the prompt; where it was too small, once more."""
    judged = _counted(judged, weights.model, wanted)
    refuse_or_warn(judged, told)
    at = Address(chats=wanted.prompt is None or not wanted.prompt.is_plain)
    while True:
        with ExitStack() as tried:
            up = tried.enter_context(started(judged, weights, at, told, threads=threads))
            talker = LlamaTalker(
                client=Client(up.running.address),
                window_tokens=window_of(judged, up.running),
                sinks=judged.order.sinks,
            )
            lacking = _lacking(judged, talker, wanted)
            if lacking is None:
                held.push(tried.pop_all())
                return talker, replace(judged, rows=up.rows)
        judged = judge_order(judged.order, judged.opened, lacking)
        refuse_or_warn(judged, told)


def window_of(judged: Judged, running: Running) -> int:
    """Of one sequence, as the engine has it; never more than was planned."""
    told = running.resolved.get("n_ctx_seq") or running.resolved.get("n_ctx")
    planned = judged.load.context_tokens or 0
    return min(int(told), planned) if told and told.isdigit() else planned


def _counted(judged: Judged, path: Path, wanted: AnswerRequest) -> Judged:
    """Bytes are a bound, which does for a short prompt that fits; no prompt is refused by it."""
    prompt = wanted.prompt
    if prompt is None or judged.order.context is not None:
        return judged
    if prompt.size_bytes <= COUNTED_BYTES and judged.check.result.can_load:
        return judged
    tokens = _tokens_in(path, prompt)
    if tokens is None:
        return judged
    job = Job(prompt_tokens=tokens, new_tokens=wanted.new_tokens)
    return judge_order(judged.order, judged.opened, job)


def _tokens_in(path: Path, prompt: Prompt) -> int | None:
    """By the file's own vocabulary; None where that cannot be had here."""
    from edgekit.errors import EdgekitError

    with suppress(ImportError, EdgekitError):
        from edgekit.runtime.stream.text import open_text

        with open_text(path) as text:
            texts = (prompt.text, *(one.content for one in prompt.messages))
            return sum(len(text.tokenizer.encode_plain(one)) for one in texts if one)
    return None


def _lacking(judged: Judged, talker: LlamaTalker, wanted: AnswerRequest) -> Job | None:
    """The job that the window is too short for; None where it holds it, or was asked for."""
    if wanted.prompt is None or judged.order.context is not None:
        return None
    tokens = len(talker.tokens(wanted.prompt))
    native = judged.check.result.native_context
    is_whole = native is not None and talker.window_tokens >= native
    if tokens + wanted.new_tokens <= talker.window_tokens or is_whole:
        return None
    return Job(prompt_tokens=tokens, new_tokens=wanted.new_tokens)


@contextmanager
def started(
    judged: Judged, weights: ModelWeights, at: Address, told: Notices, *, threads: int | None
) -> Iterator[Up]:
    """Up and watched until the end of the block, and gone after it.

    What goes wrong inside because the engine has ended is told with how it ended.
    """
    told.say(verdict_text(judged.check))
    launch = _launch(judged, weights, at, threads)
    running = start(launch, tell=told.say, recheck=judged.still_fits)
    with Watch(running, warn=told.warn) as watch:
        try:
            rows = compare_reported(judged.check.result.estimate, running)
            told.say(beside_text(rows, running.version))
            remember(judged, running, rows, told)
            yield Up(running=running, watch=watch, rows=rows)
        except EngineError as error:
            ended = running.wait(_LAST_MOMENT_S)
            if ended is None:
                raise
            kind = MemoryPressureError if watch.starved else EngineError
            raise kind(watch.reason or f"{ended.why}: {ended.last_words}") from error
        finally:
            running.stop()


def _launch(judged: Judged, weights: ModelWeights, at: Address, threads: int | None) -> Launch:
    order = judged.order
    return Launch(
        path=weights.model,
        load=judged.load,
        setup=judged.setup,
        sinks=order.sinks,
        rolling=order.rolling,
        drafter=weights.drafter,
        adapters=weights.adapters,
        projector=weights.projector,
        chat=at.chats,
        drafter_load=_drafter_load(judged),
        host=at.host,
        port=at.port,
        api_key=at.api_key,
        alias=at.alias or judged.check.bill.label,
        threads=threads,
        environment=visible_cards(
            judged.check.result.way, judged.check.result.machine, order.engine
        ),
    )


def _drafter_load(judged: Judged) -> Load:
    """As it is billed: f16 unless it was said, whatever the model's cache is."""
    kinds = (judged.order.values.get(f"draft_type_{one}", "f16") for one in "kv")
    key, value = map(cache_type, kinds)
    return replace(judged.load, cache_k=key, cache_v=value)


def remember(
    judged: Judged, running: Running, rows: tuple[ComparedRow, ...], told: Notices
) -> None:
    """A bill that was wrong is not forgotten: `edgekit hardware` shows it."""
    outside = [row for row in rows if not row.within]
    if not outside:
        return
    parts = ", ".join(f"{row.part} {row.difference_bytes:+,} B" for row in outside)
    told.warn(f"the estimate differs from what llama.cpp {running.version} allocated: {parts}")
    try:
        remember_rows(judged.check.bill.label, rows, version=running.version)
    except SourceError as error:
        told.warn(f"the difference could not be saved: {error}")
