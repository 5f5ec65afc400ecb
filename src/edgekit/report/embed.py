"""An embedder's plan, vectors and bulk jobs as text and as JSON (docs/embed.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgekit.errors import printable
from edgekit.report.json import SCHEMA, Json, fields
from edgekit.report.text import (
    PLAIN,
    Screen,
    Section,
    clamp_width,
    fold,
    fold_rows,
    render,
    table,
    with_count,
)
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from edgekit.embed.bulk.job import Finished
    from edgekit.embed.bulk.rows import BulkStatus
    from edgekit.embed.types import EmbedPlan
    from edgekit.engines.native.kernels.types import Floats

_SHOWN_NUMBERS = 6  # of each vector; --json has all
_BAR = 20
_MODEL_FIELDS = "model=label mode dimensions pooling=pooling.label"


def embed_plan_text(plan: EmbedPlan, screen: Screen = PLAIN) -> str:
    """The memory breakdown, line by line, with reasons."""
    total, budget = format_bytes(plan.total_bytes), format_bytes(plan.budget_bytes)
    rows = [(line.what, format_bytes(line.size_bytes), line.basis.value) for line in plan.lines]
    read = "no weights are read"
    if plan.read_bytes:
        read = f"{format_bytes(plan.read_bytes)} of the weights are read from the file"
    notes = [
        f"Budget: {plan.budget_because}.",
        (
            f"A pass processes up to {with_count(plan.pass_tokens, 'token')}; a text may have "
            f"{plan.text_tokens:,} ({plan.text_tokens_because}). In every pass, {read}."
        ),
        *(f"{line.what}: {line.because}" for line in plan.lines),
        *plan.notes,
    ]
    sections: list[Section] = [
        (None, [_title(plan)]),
        ("", lambda _: table(("", "size", "known"), rows)),
        ("", notes),
    ]
    return render(f"{total} of memory, with a budget of {budget}", sections, screen)


def _title(plan: EmbedPlan) -> str:
    """The model, its dimensions and pooling, and the threads and kernels that compute it."""
    pooling = (
        "mean of token embeddings" if plan.pooling is None else f"{plan.pooling.label} pooling"
    )
    size, threads = with_count(plan.dimensions, "dimension"), with_count(plan.threads, "thread")
    return f"{plan.label}  ·  {size}, {pooling}  ·  {threads}, {plan.kernels} kernels"


def vectors_text(
    plan: EmbedPlan,
    texts: Sequence[str],
    tokens: Sequence[int],
    vectors: Floats,
    screen: Screen = PLAIN,
) -> str:
    """The start of each vector; with several texts also how similar each is to the first."""
    width, first = clamp_width(screen.width), vectors[0]
    lines = [*fold(_title(plan), width), ""]
    for place, (text, count, vector) in enumerate(zip(texts, tokens, vectors, strict=True)):
        plain = printable(" ".join(text.split()))
        facts = [with_count(count, "token"), f"norm {_norm(vector):.4f}"]
        if place:
            product = float((first.astype("f8") * vector).sum())
            cosine = product / ((_norm(first) * _norm(vector)) or 1.0)
            facts.append(f"cosine similarity to the first {cosine:.4f}")
        numbers = " ".join(f"{number:+.4f}" for number in vector[:_SHOWN_NUMBERS].tolist())
        lines += [
            plain if len(plain) <= width else f"{plain[: width - 3]}...",
            f"  {', '.join(facts)}",
            f"  {numbers}{'' if len(vector) <= _SHOWN_NUMBERS else ' ...'}",
        ]
    lines += ["", "For all numbers use --json, or --output FILE (.npy, .jsonl, .parquet)."]
    return "\n".join(lines) + "\n"


def _norm(vector: Floats) -> float:
    return float((vector.astype("f8") ** 2).sum() ** 0.5)


def job_text(job: Finished, screen: Screen = PLAIN) -> str:
    """The number of rows embedded, where they are, and what was left out."""
    done = job.done
    rows = done.mark.kept - done.begun.kept
    tokens = done.mark.tokens - done.begun.tokens
    rate = f", {rows / done.seconds:,.1f} rows/s" if rows and done.seconds > 0 else ""
    sentences = [
        f"{with_count(done.mark.kept, 'vector')} of {with_count(job.dimensions, 'dimension')} in {job.output}",
        f"{with_count(rows, 'row')}, {with_count(tokens, 'token')} in {_time(done.seconds)}{rate}",
    ]
    if done.begun.number:
        sentences.append(f"continued an unfinished job after row {done.begun.number:,}")
    if done.mark.skipped:
        where = "" if job.skipped is None else f", listed in {job.skipped}"
        sentences.append(f"{with_count(done.mark.skipped, 'row')} could not be embedded{where}")
    return "\n".join(fold_rows(sentences, clamp_width(screen.width))) + "\n"


def progress_line(status: BulkStatus, *, width: int) -> str:
    """'[#####.....] 24 %  2,400 rows  310 rows/s  8,900 tokens/s  3 bad  2 min left'."""
    mark, begun, seconds = status.mark, status.begun, max(status.seconds, 1e-9)
    parts = [
        with_count(mark.number, "row"),
        f"{(mark.number - begun.number) / seconds:,.1f} rows/s",
    ]
    parts.append(f"{(mark.tokens - begun.tokens) / seconds:,.0f} tokens/s")
    if mark.skipped:
        parts.append(f"{mark.skipped:,} skipped")
    if status.share is not None:
        share = min(max(status.share, 0.0), 1.0)
        full = int(share * _BAR)
        parts.insert(0, f"[{'#' * full}{'.' * (_BAR - full)}] {share:.0%}")
        share_of_this_run = status.share - (status.share_begun or 0.0)
        if share_of_this_run > 0:
            left_s = status.seconds * (1 - status.share) / share_of_this_run
            parts.append(f"{_time(left_s)} left")
    return "  ".join(parts)[: max(width - 1, 1)]


def _time(seconds: float) -> str:
    """'4.2 s', '35 s', '12 min', '2 h 5 min'."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def embed_plan_json(plan: EmbedPlan) -> Json:
    return {
        "schema": SCHEMA,
        **fields(plan, _MODEL_FIELDS),
        **fields(plan, "engine kernels threads budget_bytes budget_because total_bytes"),
        "lines": [fields(line, "what size_bytes basis because") for line in plan.lines],
        **fields(plan, "pass_tokens text_tokens text_tokens_because read_bytes notes"),
    }


def vectors_json(plan: EmbedPlan, tokens: Sequence[int], vectors: Floats, *, prefix: str) -> Json:
    return {
        "schema": SCHEMA,
        **fields(plan, _MODEL_FIELDS),
        "prefix": prefix,
        "vectors": [
            {"tokens": count, "vector": shortest(vector)}
            for count, vector in zip(tokens, vectors, strict=True)
        ],
    }


def job_json(job: Finished) -> Json:
    return {
        "schema": SCHEMA,
        **fields(job, "model input=source output skipped_list=skipped dimensions"),
        **fields(job.done.mark, "rows=number vectors=kept skipped tokens"),
        "resumed_rows": job.done.begun.number,
        "seconds": round(job.done.seconds, 3),
    }


def shortest(vector: Floats) -> list[float]:
    """The fewest digits that give the same float32: 0.1 and not 0.10000000149011612."""
    return [float(number) for number in vector.astype("U16").tolist()]
