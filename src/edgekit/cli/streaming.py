"""A verdict and a file -> the built-in engine, opened inside its budget."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.bill.task import Job
from edgekit.cli.running import Judged, Notices, judge_order, refuse_or_warn
from edgekit.errors import MissingExtraError
from edgekit.machine.monitor import Monitor
from edgekit.report.run_text import verdict_text

if TYPE_CHECKING:
    from edgekit.cli.answering import AnswerRequest
    from edgekit.runtime.stream.talking import StreamTalker


CUT_BYTES = 48  # for a byte of a prompt: a token at most, as two Python objects, its text beside it


def start_stream(
    judged: Judged, path: Path, wanted: AnswerRequest, held: ExitStack, told: Notices
) -> tuple[StreamTalker, Judged]:
    """The prompt is counted first: the window is as long as the job, to the token."""
    try:
        import tokenizers  # noqa: F401 - else it is missed where nobody can say what to do

        from edgekit.runtime.stream.engine import open_stream
        from edgekit.runtime.stream.talking import StreamTalker, prompt_tokens
        from edgekit.runtime.stream.text import open_text
    except ModuleNotFoundError as error:
        if error.name not in {"numpy", "tokenizers"}:
            raise
        raise MissingExtraError(
            f"the built-in engine needs {error.name}: pip install 'edgekit-models[embed]'"
        ) from error
    budget = judged.order.budget_bytes
    monitor = Monitor(budget_bytes=budget, own_process=budget is not None)
    text = held.enter_context(open_text(path))
    if wanted.prompt is not None:
        size = wanted.prompt.size_bytes * CUT_BYTES
        held.enter_context(monitor.try_allocate(size, "the prompt, cut into tokens,"))
        tokens = len(prompt_tokens(text, wanted.prompt))
        job = Job(prompt_tokens=tokens, new_tokens=wanted.new_tokens)
        judged = judge_order(judged.order, judged.opened, job)
        refuse_or_warn(judged, told)
    judged.still_fits()
    told.say(verdict_text(judged.check))
    engine = held.enter_context(
        open_stream(
            path,
            load=judged.load,
            setup=judged.setup,
            monitor=monitor,
            purpose=judged.order.purpose,
        )
    )
    told.say(f"the cache has {engine.cache_bytes:,} bytes, as estimated")
    return StreamTalker(engine=engine, text=text), judged
