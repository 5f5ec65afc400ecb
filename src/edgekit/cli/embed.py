"""`embed`: a few texts, a bulk job over files, a plan, or a server on standard input."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from edgekit import __version__
from edgekit.cli import warn
from edgekit.cli.check import download_confirmation
from edgekit.cli.console import is_terminal, open_session, screen, screen_width, show_progress
from edgekit.embed import Limits, open_embedder, plan_embedder
from edgekit.embed.bulk.job import Finished, Stage, Terms, run_job
from edgekit.embed.bulk.output import (
    FileOutput,
    Output,
    StreamOutput,
    check_apart,
    form_of,
    output_format,
    read_job,
)
from edgekit.embed.bulk.readers import FORMATS, ArgumentTexts, format_of, open_source
from edgekit.embed.bulk.rows import (
    STDIN,
    BadRow,
    BulkStatus,
    Fields,
    RowLimit,
    RowSource,
    input_bytes_for,
)
from edgekit.embed.stdio import serve
from edgekit.embed.types import BUILT_IN, ENGINES
from edgekit.engines.flags import Whole, one_of
from edgekit.errors import TextError, UsageError
from edgekit.report.embed import (
    embed_plan_json,
    embed_plan_text,
    job_json,
    job_text,
    progress_line,
    vectors_json,
    vectors_text,
)
from edgekit.report.json import fields, json_text
from edgekit.sources.download import find_weights
from edgekit.units import parse_size

if TYPE_CHECKING:
    from edgekit.embed.embedder import Embedder
    from edgekit.embed.open import Choices
    from edgekit.embed.types import EmbedPlan


T = TypeVar("T")
MAX_BATCH_TEXTS = 256  # without --batch: batches are then sized by tokens
SHOW_EVERY_S = 0.2
STDOUT = "-"

_HASHED_BYTES = 2**20  # of a model file, from its start: the keys, and where its tensors are
_THREADS_ON_RAY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedArguments:
    """The parsed arguments of the command."""

    model: str
    texts: tuple[str, ...]
    choices: Choices
    prefix: str | None  # put before each text; None: the model's own prefix for the task
    task: str | None
    form: str | None  # the format of the input; None: recognised by its file name
    fields: Fields
    batch: int | None
    cluster: tuple[str, int | None] | None  # Ray's address, and the number of workers

    def prefix_of(self, embedder: Embedder) -> str:
        if self.task is not None:
            return embedder.prefix(self.task)
        return self.prefix or ""


def read_arguments(arguments: argparse.Namespace) -> EmbedArguments:
    """Raises UsageError with the name of the option."""

    def read(name: str, parse: Callable[[str], T]) -> T | None:
        text = getattr(arguments, name)
        try:
            return None if text is None else parse(text)
        except UsageError as error:
            raise UsageError(f"--{name.replace('_', '-')}: {error}") from error

    defaults = Limits()
    default_threads = None if arguments.ray is None else _THREADS_ON_RAY
    choices: dict[str, Any] = {
        # Ray's workers are separate processes, whose memory cannot be limited from here
        "own_process": arguments.ray is None,
        "memory_budget": read("budget", parse_size),
        "threads": read("threads", Whole(1, 1024)) or default_threads,
        "engine": read("engine", one_of(*ENGINES)) or BUILT_IN,
        "tokenizer_cache": arguments.tokenizer_cache,
        "mode": read("mode", one_of("encoder", "tokens")) or "encoder",
        "pooling": read("pooling", one_of("mean", "cls", "last")),
        "dimensions": read("dimensions", Whole(1)),
        "normalize": not arguments.no_normalize,
        "truncate": arguments.truncate,
        "limits": Limits(
            file_bytes=read("max_file", parse_size) or defaults.file_bytes,
            tokens=read("max_tokens", Whole(1)) or defaults.tokens,
        ),
    }
    tasks = [task for task in ("query", "document") if getattr(arguments, task)]
    model, *texts = arguments.models
    return EmbedArguments(
        model=model,
        texts=tuple(texts),
        choices=_choices(choices),
        prefix=arguments.prefix,
        task=tasks[0] if tasks else None,
        form=read("format", one_of(*FORMATS)),
        fields=Fields(text=arguments.field, id=arguments.id_field),
        batch=None if arguments.batch == "auto" else read("batch", Whole(1, 65_536)),
        cluster=None if arguments.ray is None else (arguments.ray, read("workers", Whole(1, 4096))),
    )


def _choices(values: Mapping[str, Any]) -> Choices:
    """The values that were given; the others keep the defaults of `open_embedder`."""
    given = {name: value for name, value in values.items() if value is not None}
    return cast("Choices", given)


def run_bulk(options: EmbedArguments, arguments: argparse.Namespace) -> Finished | None:
    """Run the job from start to end. None if its output is a pipe that was closed."""
    kind, path = output_format(arguments.output), Path(arguments.output)
    if arguments.output != STDOUT:
        other_paths: dict[str, Path | int] = {"the model": Path(options.model)}
        if arguments.input == STDIN:
            # standard input may be closed (None), or an object that is not a file
            with suppress(OSError, ValueError, AttributeError):
                other_paths["the input"] = sys.stdin.fileno()
        elif arguments.input is not None:
            other_paths["the input"] = Path(arguments.input)
        check_apart(path, other_paths)
    _import_all(kind, options, arguments)
    unfinished: dict[str, Any] = {}
    if arguments.output != STDOUT and not arguments.overwrite:
        journal = path.resolve().with_name(f"{path.resolve().name}.journal")
        unfinished = read_job(journal) or {}
    budget = options.choices.get("memory_budget")
    if not isinstance(budget, int):
        # a job that is continued keeps its budget, so that the same rows count as bad
        earlier_budget = unfinished.get("input", {}).get("row_budget_bytes")
        budget = earlier_budget if _is_size(earlier_budget) else None
    limit = RowLimit.of(budget)
    source: RowSource = ArgumentTexts(options.texts)
    if arguments.input is not None:
        source = open_source(arguments.input, form=options.form, fields=options.fields, limit=limit)
    try:
        # an unfinished job continues with its budget and threads, unless others are given
        earlier = unfinished.get("plan", {})
        values = {"memory_budget": earlier.get("budget_bytes"), "threads": earlier.get("threads")}
        valid = {name: value for name, value in values.items() if _is_size(value)}
        choices = _choices(valid | {**options.choices})
        if arguments.input is not None:
            choices = with_input(choices, limit.budget_bytes)
        return _run_job(replace(options, choices=choices), arguments, source, limit, kind)
    finally:
        source.close()


def with_input(choices: Choices, budget_bytes: int | None) -> Choices:
    """The choices with a budget that includes the input."""
    return {**choices, "input_bytes": input_bytes_for(budget_bytes)}


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _import_all(kind: str, options: EmbedArguments, arguments: argparse.Namespace) -> None:
    """Import what the job needs: a missing package is reported before the job starts, and the plan counts the rest."""
    if arguments.output != STDOUT or arguments.input == STDIN:
        import hashlib  # noqa: F401 - 3 MiB with OpenSSL, for marks and for what was read from a pipe
    if kind == "parquet":
        from edgekit.embed.bulk.parquet import arrow

        arrow()
    if options.cluster is not None:
        from edgekit.embed.bulk.ray_stage import import_ray

        import_ray()


def _run_job(
    options: EmbedArguments,
    arguments: argparse.Namespace,
    source: RowSource,
    limit: RowLimit,
    kind: str,
) -> Finished | None:
    """Embed the rows of the source into the output. None if the output is a pipe that was closed."""
    name = arguments.output
    with open_embedder(options.model, **options.choices) as embedder:
        terms = Terms(
            texts=options.batch or MAX_BATCH_TEXTS,
            tokens=embedder.plan.pass_tokens if options.batch is None else None,
            name=source.name,
            prefix=options.prefix_of(embedder),
            skip_bad=arguments.skip_bad,
            limit=limit,
        )
        has_ids, dimensions = options.fields.id is not None, embedder.dimensions
        form = form_of(kind, dimensions=dimensions, ids=has_ids, integer_ids=source.integer_ids)
        output: Output
        if name != STDOUT:
            identity = _identity(options, arguments, source, embedder.plan, terms)
            output = FileOutput(
                Path(name), form, identity, overwrite=arguments.overwrite, resume=arguments.resume
            )
        elif arguments.resume:
            raise UsageError("output to a pipe cannot be resumed: leave out --resume")
        elif sys.stdout is None:
            raise UsageError("standard output is closed")
        else:
            output = StreamOutput(sys.stdout.buffer, form, _print_bad)
        try:
            with _progress(arguments) as progress:
                stage = _ray_stage(options, embedder, terms)
                done = run_job(source, embedder, terms, output, stage=stage, report=progress)
        except BrokenPipeError:  # the reader of standard output has enough: not an error
            return None
        finally:
            output.close()
        return Finished(
            model=embedder.label,
            source=source.name,
            output="standard output" if name == STDOUT else name,
            skipped=f"{name}.skipped.jsonl" if done.mark.skipped and name != STDOUT else None,
            dimensions=dimensions,
            done=done,
        )


def _identity(
    options: EmbedArguments,
    arguments: argparse.Namespace,
    source: RowSource,
    plan: EmbedPlan,
    terms: Terms,
) -> dict[str, Any]:
    """The facts that must be unchanged for an unfinished job to be continued."""
    import hashlib  # at first use: it takes 3 MiB

    with Path(options.model).open("rb") as file:
        status = os.fstat(file.fileno())
        beginning = hashlib.sha256(file.read(_HASHED_BYTES)).hexdigest()
    return {
        "edgekit": __version__,
        "model": {
            "size_bytes": status.st_size,
            "modified_ns": status.st_mtime_ns,
            "beginning": beginning,
        },
        "input": {
            **source.identity,
            "format": None
            if arguments.input is None
            else options.form or format_of(arguments.input),
            "field": options.fields.text,
            "id_field": options.fields.id,
            "row_budget_bytes": terms.limit.budget_bytes,
        },
        "options": {
            **fields(plan, "mode engine pooling=pooling.label dimensions"),
            "normalize": options.choices.get("normalize"),
            "truncate": options.choices.get("truncate"),
            "prefix": terms.prefix,
            "max_tokens": plan.text_tokens,
            "batch": options.batch or "auto",
        },
        "plan": fields(plan, "budget_bytes threads kernels pass_tokens"),
    }


def _ray_stage(options: EmbedArguments, embedder: Embedder, terms: Terms) -> Stage | None:
    """The function that embeds batches on the workers of a Ray cluster; None without --ray."""
    if options.cluster is None:
        return None
    from edgekit.embed.bulk.ray_stage import Cluster, Opening, embed_on_ray

    address, workers = options.cluster
    path, plan = Path(options.model).resolve(), embedder.plan
    opening = Opening(model=str(path), size_bytes=path.stat().st_size, options={**options.choices})
    cluster = Cluster(
        address=address, workers=workers, threads=plan.threads, memory_bytes=plan.budget_bytes
    )
    return partial(embed_on_ray, opening, terms, cluster)


def _print_bad(row: BadRow) -> None:
    warn(f"row {row.number:,} skipped: {row.reason}")


@contextmanager
def _progress(arguments: argparse.Namespace) -> Iterator[Callable[[BulkStatus], None] | None]:
    """Shows the progress in one line of the terminal; None if nothing is to be shown."""
    if arguments.quiet or arguments.json or not is_terminal(sys.stderr):
        yield None
        return

    next_s = 0.0

    def show(status: BulkStatus) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            show_progress(progress_line(status, width=screen_width()))
            next_s = time.monotonic() + SHOW_EVERY_S

    try:
        yield show
    finally:
        show_progress("")


def run_embed(arguments: argparse.Namespace) -> tuple[str, int]:
    """The answer as text, and its exit code."""
    options = read_arguments(arguments)
    _check_together(options, arguments)
    quiet = arguments.json or arguments.quiet
    with open_session(arguments, quiet=quiet, confirm=download_confirmation(arguments)) as session:
        weights = find_weights(options.model, reach=session.reach, confirm=session.confirm)
    options = replace(options, model=str(weights.path))
    reads = arguments.stdio or arguments.input is not None
    if reads and (arguments.plan or arguments.stdio):
        budget = options.choices.get("memory_budget")
        choices = with_input(options.choices, budget if isinstance(budget, int) else None)
        options = replace(options, choices=choices)
    if arguments.plan:
        plan = plan_embedder(options.model, **options.choices)
        return json_text(embed_plan_json(plan)) if arguments.json else embed_plan_text(
            plan, screen()
        ), 0
    if arguments.stdio:
        with open_embedder(options.model, **options.choices) as embedder:
            ready = {"plan": embed_plan_json(embedder.plan)}
            return "", serve(embedder, prefix=options.prefix_of(embedder), ready=ready)
    if arguments.output is None:
        return _embed_texts(options, arguments), 0
    done = run_bulk(options, arguments)
    if done is None or arguments.quiet:
        return "", 0
    if arguments.json:
        return json_text(job_json(done)), 0
    summary = job_text(done, screen(colour=False))
    if arguments.output != STDOUT:
        return summary, 0
    sys.stderr.write(summary)
    return "", 0


def _check_together(options: EmbedArguments, arguments: argparse.Namespace) -> None:
    """Raises UsageError for options that contradict each other."""
    texts, files = bool(options.texts), arguments.input is not None
    wrong = {
        "give texts on the command line or with --input, not both": texts and files,
        "give texts on the command line, a file with --input, or use --stdio": not (
            texts or files or arguments.stdio or arguments.plan
        ),
        "--stdio reads texts from requests: leave out TEXT, --input, --output, --json and --ray": (
            arguments.stdio
            and (texts or files or arguments.output or arguments.json or options.cluster)
        ),
        "standard input is closed": (
            sys.stdin is None and (arguments.stdio or arguments.input == "-")
        ),
        "standard output is closed": (
            sys.stdout is None and (arguments.stdio or arguments.output == "-")
        ),
        "--input needs an --output: a file, or - for JSON lines": (
            files and arguments.output is None and not arguments.plan
        ),
        "--json prints a summary, but standard output is used for the vectors (--output -)": (
            arguments.json and arguments.output == "-"
        ),
        "--ray needs files: --input FILE --output FILE": (
            options.cluster is not None and (not files or arguments.input == "-")
        ),
        "--ray needs a --budget, which is per worker": options.cluster is not None
        and options.choices.get("memory_budget") is None,
        "--workers only works with --ray": arguments.workers is not None
        and options.cluster is None,
    }
    for why, is_wrong in wrong.items():
        if is_wrong:
            raise UsageError(why)


def _embed_texts(options: EmbedArguments, arguments: argparse.Namespace) -> str:
    """The vectors of the texts on the command line, as text or JSON."""
    with open_embedder(options.model, **options.choices) as embedder:
        prefix = options.prefix_of(embedder)
        try:
            vectors = embedder.embed(options.texts, prefix=prefix)
        except TextError as error:
            # people count the texts of a command line from one
            index = None if error.index is None else error.index + 1
            raise TextError(error.what, index=index) from error
        tokens = [embedder.count_tokens(text, prefix=prefix) for text in options.texts]
        plan = embedder.plan
    if arguments.json:
        return json_text(vectors_json(plan, tokens, vectors, prefix=prefix))
    return vectors_text(plan, options.texts, tokens, vectors, screen(colour=False))
