"""An embedder's plan, vectors and bulk jobs as text and as JSON (docs/embed.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from edgekit.report.json import SCHEMA
from edgekit.report.text import counted, figures, folded, within
from edgekit.terminal import printable
from edgekit.units import format_bytes

if TYPE_CHECKING:
    from edgekit.embed.bulk.job import Finished
    from edgekit.embed.bulk.types import BulkStatus
    from edgekit.embed.plan import EmbedPlan
    from edgekit.engines.native.types import Floats


_SHOWN = 6  # numbers of a vector
_BAR = 20


def plan_text(plan: EmbedPlan, *, width: int, bold: bool = False) -> str:
    """The verdict first, then the bill."""
    width = within(width)
    verdict = (
        f"{format_bytes(plan.total_bytes)} of memory, with a budget of "
        f"{format_bytes(plan.budget_bytes)}"
    )
    lines = [f"\x1b[1m{verdict}\x1b[0m" if bold else verdict]
    lines += [*folded(_title(plan), width), ""]
    lines += figures(
        ("", "size", "known", ""),
        ((line.what, format_bytes(line.size_bytes), line.basis.value, "") for line in plan.lines),
    )
    lines += ["", *(line for note in _plan_notes(plan) for line in folded(note, width))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _plan_notes(plan: EmbedPlan) -> Iterator[str]:
    yield f"Budget: {plan.budget_because}."
    read = (
        f"{format_bytes(plan.read_bytes)} of the weights are read from the file"
        if plan.read_bytes
        else "no weights are read"
    )
    yield (
        f"A pass processes up to {counted(plan.pass_tokens, 'token')}; a text may have "
        f"{plan.text_tokens:,} ({plan.text_tokens_because}). In every pass, {read}."
    )
    for line in plan.lines:
        yield f"{line.what}: {line.because}"
    yield from plan.notes


def _title(plan: EmbedPlan) -> str:
    how = "mean of token embeddings" if plan.pooling is None else f"{plan.pooling.label} pooling"
    size, threads = counted(plan.dimensions, "dimension"), counted(plan.threads, "thread")
    return f"{plan.label}  ·  {size}, {how}  ·  {threads}, {plan.kernels} kernels"


def vectors_text(
    plan: EmbedPlan,
    texts: Sequence[str],
    tokens: Sequence[int],
    vectors: Floats,
    *,
    width: int,
) -> str:
    """The beginning of each vector; of several texts also how near each is to the first."""
    width = within(width)
    lines = [*folded(_title(plan), width), ""]
    first = vectors[0]
    for place, (text, count, vector) in enumerate(zip(texts, tokens, vectors, strict=True)):
        said = [counted(count, "token"), f"norm {_norm(vector):.4f}"]
        if place:
            said.append(f"cosine similarity to the first {_cosine(first, vector):.4f}")
        lines += [_quoted(text, width), f"  {', '.join(said)}", f"  {_beginning(vector)}"]
    lines += ["", "For all numbers use --json, or --output FILE (.npy, .jsonl, .parquet)."]
    return "\n".join(lines) + "\n"


def _quoted(text: str, width: int) -> str:
    plain = printable(" ".join(text.split()))
    return plain if len(plain) <= width else f"{plain[: width - 3]}..."


def _beginning(vector: Floats) -> str:
    told = " ".join(f"{number:+.4f}" for number in vector[:_SHOWN].tolist())
    return told if len(vector) <= _SHOWN else f"{told} ..."


def _norm(vector: Floats) -> float:
    return float((vector.astype("f8") ** 2).sum() ** 0.5)


def _cosine(one: Floats, other: Floats) -> float:
    product = float((one.astype("f8") * other).sum())
    return product / ((_norm(one) * _norm(other)) or 1.0)


def done_text(found: Finished, *, width: int) -> str:
    """What was done, where it is, and what was left out."""
    done, width = found.done, within(width)
    here = done.mark.kept - done.begun.kept
    tokens = done.mark.tokens - done.begun.tokens
    told = [
        f"{counted(done.mark.kept, 'vector')} of {counted(found.dimensions, 'dimension')} in {found.output}",
        f"{counted(here, 'row')}, {counted(tokens, 'token')} in {_time(done.seconds)}{_rate(here, done.seconds)}",
    ]
    if done.begun.number:
        told.append(f"continued an unfinished job after row {done.begun.number:,}")
    if done.mark.skipped:
        where = "" if found.skipped is None else f", listed in {found.skipped}"
        told.append(f"{counted(done.mark.skipped, 'row')} could not be embedded{where}")
    return "\n".join(line for one in told for line in folded(one, width)) + "\n"


def _rate(rows: int, seconds: float) -> str:
    return f", {rows / seconds:,.1f} rows/s" if rows and seconds > 0 else ""


def progress_line(status: BulkStatus, *, width: int) -> str:
    """'[#####.....] 24 %  2,400 rows  310 rows/s  8,900 tokens/s  3 bad  2 min left'."""
    mark, begun, seconds = status.mark, status.begun, max(status.seconds, 1e-9)
    parts = [counted(mark.number, "row"), f"{(mark.number - begun.number) / seconds:,.1f} rows/s"]
    parts.append(f"{(mark.tokens - begun.tokens) / seconds:,.0f} tokens/s")
    if mark.skipped:
        parts.append(f"{mark.skipped:,} skipped")
    if status.share is not None:
        parts.insert(0, _bar(status.share))
        parts.extend(_left(status))
    return "  ".join(parts)[: max(width - 1, 1)]


def _bar(share: float) -> str:
    share = min(max(share, 0.0), 1.0)
    full = int(share * _BAR)
    return f"[{'#' * full}{'.' * (_BAR - full)}] {share:.0%}"


def _left(status: BulkStatus) -> Iterator[str]:
    """By the share of the input that this run has read."""
    read = (status.share or 0.0) - (status.share_begun or 0.0)
    if read > 0:
        yield f"{_time(status.seconds * (1 - (status.share or 0.0)) / read)} left"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def plan_json(plan: EmbedPlan) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **_model(plan),
        "engine": plan.engine,
        "kernels": plan.kernels,
        "threads": plan.threads,
        "budget_bytes": plan.budget_bytes,
        "budget_because": plan.budget_because,
        "total_bytes": plan.total_bytes,
        "lines": [
            {
                "what": line.what,
                "size_bytes": line.size_bytes,
                "basis": line.basis.value,
                "because": line.because,
            }
            for line in plan.lines
        ],
        "pass_tokens": plan.pass_tokens,
        "text_tokens": plan.text_tokens,
        "text_tokens_because": plan.text_tokens_because,
        "read_bytes": plan.read_bytes,
        "notes": list(plan.notes),
    }


def vectors_json(
    plan: EmbedPlan, tokens: Sequence[int], vectors: Floats, *, prefix: str
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **_model(plan),
        "prefix": prefix,
        "vectors": [
            {"tokens": count, "vector": shortest(vector)}
            for count, vector in zip(tokens, vectors, strict=True)
        ],
    }


def done_json(found: Finished) -> dict[str, Any]:
    done = found.done
    return {
        "schema": SCHEMA,
        "model": found.model,
        "input": found.source,
        "output": found.output,
        "skipped_list": found.skipped,
        "dimensions": found.dimensions,
        "rows": done.mark.number,
        "vectors": done.mark.kept,
        "skipped": done.mark.skipped,
        "tokens": done.mark.tokens,
        "resumed_rows": done.begun.number,
        "seconds": round(done.seconds, 3),
    }


def shortest(vector: Floats) -> list[float]:
    """The fewest digits that give the same float32: 0.1 and not 0.10000000149011612."""
    return [float(number) for number in vector.astype("U16").tolist()]


def _model(plan: EmbedPlan) -> dict[str, Any]:
    return {
        "model": plan.label,
        "mode": plan.mode.value,
        "dimensions": plan.dimensions,
        "pooling": None if plan.pooling is None else plan.pooling.label,
    }
