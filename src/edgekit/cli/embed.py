"""`embed`: a few texts, a bulk job over files, a plan, or a server on standard input."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from edgekit import __version__
from edgekit.cli.check import confirmed
from edgekit.cli.console import is_terminal, open_session, screen, screen_width, show_progress
from edgekit.embed import Limits, open_embedder, plan_embedder
from edgekit.embed.bulk.job import BatchRule, Finished, Stage, Terms, embed_here, run_job
from edgekit.embed.bulk.output import (
    FileOutput,
    Output,
    StreamOutput,
    check_apart,
    form_of,
    output_format,
    read_job,
)
from edgekit.embed.bulk.readers import FORMATS, GivenTexts, format_of, open_source
from edgekit.embed.bulk.rows import (
    STDIN,
    BadRow,
    BulkStatus,
    Fields,
    RowLimit,
    RowSource,
    VectorForm,
    input_bytes_for,
)
from edgekit.embed.stdio import serve
from edgekit.embed.types import BUILT_IN, ENGINES
from edgekit.engines.flags import one_of, whole
from edgekit.errors import TextError, UsageError, printable
from edgekit.report.embed import (
    done_json,
    done_text,
    plan_json,
    plan_text,
    progress_line,
    vectors_json,
    vectors_text,
)
from edgekit.report.json import json_text
from edgekit.sources.download import find_weights
from edgekit.units import parse_size

if TYPE_CHECKING:
    from edgekit.embed.embedder import Embedder
    from edgekit.embed.open import Choices


T = TypeVar("T")
MAX_BATCH_TEXTS = 256  # in a batch that is sized by tokens
SHOW_EVERY_S = 0.2
STDOUT = "-"

_HASHED_BYTES = 2**20  # the start of a model file has its keys and its tensors' offsets
_THREADS_ON_RAY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedArguments:
    """The parsed arguments of the command."""

    model: str
    texts: tuple[str, ...]
    choices: Choices
    prefix: str | None  # None: the model's own for the task
    task: str | None
    form: str | None  # of the input; None: by its file name
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

    usual = Limits()
    choices: dict[str, Any] = {
        "own_process": arguments.ray
        is None,  # the memory of Ray's own workers is not ours to limit
        "memory_budget": read("budget", parse_size),
        "threads": read("threads", whole(1, 1024))
        or (None if arguments.ray is None else _THREADS_ON_RAY),
        "engine": read("engine", one_of(*ENGINES)) or BUILT_IN,
        "tokenizer_cache": arguments.tokenizer_cache,
        "mode": read("mode", one_of("encoder", "tokens")) or "encoder",
        "pooling": read("pooling", one_of("mean", "cls", "last")),
        "dimensions": read("dimensions", whole(1)),
        "normalize": not arguments.no_normalize,
        "truncate": arguments.truncate,
        "limits": Limits(
            file_bytes=read("max_file", parse_size) or usual.file_bytes,
            held_tensor_bytes=usual.held_tensor_bytes,
            tokens=read("max_tokens", whole(1)) or usual.tokens,
            text_bytes=usual.text_bytes,
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
        batch=None if arguments.batch == "auto" else read("batch", whole(1, 65_536)),
        cluster=None if arguments.ray is None else (arguments.ray, read("workers", whole(1, 4096))),
    )


def _choices(values: Mapping[str, Any]) -> Choices:
    found = {name: value for name, value in values.items() if value is not None}
    return cast("Choices", found)


def run_bulk(given: EmbedArguments, arguments: argparse.Namespace) -> Finished | None:
    """Run the job from start to end. None if its output is a pipe that was closed."""
    kind = output_format(arguments.output)
    _check_apart(given, arguments)
    _import_all(kind, given, arguments)
    limit = _row_limit(given.choices, arguments)
    source = _source(given, arguments, limit)
    try:
        choices = _as_before(given.choices, arguments)
        if arguments.input is not None:
            choices = with_input(choices, limit.budget_bytes)
        given = replace(given, choices=choices)
        with open_embedder(given.model, **given.choices) as embedder:
            terms = Terms(
                name=source.name,
                rule=_rule(given, embedder.plan.pass_tokens, limit),
                prefix=given.prefix_of(embedder),
                skip_bad=arguments.skip_bad,
                limit=limit,
            )
            form = form_of(
                kind,
                dimensions=embedder.dimensions,
                ids=given.fields.id is not None,
                integer_ids=source.integer_ids,
            )
            return _Job(given, arguments, source, embedder, terms).run(form)
    finally:
        source.close()


def with_input(choices: Choices, budget_bytes: int | None) -> Choices:
    """The budget holds what is read too."""
    return {**choices, "input_bytes": input_bytes_for(budget_bytes)}


def _import_all(kind: str, given: EmbedArguments, arguments: argparse.Namespace) -> None:
    """What is not installed is reported before there is an unfinished job; what is, is counted by the plan."""
    if arguments.output != STDOUT or arguments.input == STDIN:
        import hashlib  # noqa: F401 - 3 MiB with OpenSSL, for marks and for what was read from a pipe
    if kind == "parquet":
        from edgekit.embed.bulk.parquet import arrow

        arrow()
    if given.cluster is not None:
        from edgekit.embed.bulk.ray_stage import import_ray

        import_ray()


def _check_apart(given: EmbedArguments, arguments: argparse.Namespace) -> None:
    if arguments.output == STDOUT:
        return
    others: dict[str, Path | int] = {"the model": Path(given.model)}
    if arguments.input == STDIN:
        with suppress(OSError, ValueError, AttributeError):  # closed, or no file at all
            others["the input"] = sys.stdin.fileno()
    elif arguments.input is not None:
        others["the input"] = Path(arguments.input)
    check_apart(Path(arguments.output), others)


def _row_limit(choices: Choices, arguments: argparse.Namespace) -> RowLimit:
    """Of the budget that is named; else that of the unfinished job, so that the same rows are bad ones."""
    budget = choices.get("memory_budget")
    if isinstance(budget, int):
        return RowLimit.of(budget)
    before = _unfinished(arguments).get("input", {}).get("row_budget_bytes")
    return RowLimit.of(before if _is_size(before) else None)


def _source(given: EmbedArguments, arguments: argparse.Namespace, limit: RowLimit) -> RowSource:
    if arguments.input is None:
        return GivenTexts(given.texts)
    return open_source(arguments.input, form=given.form, fields=given.fields, limit=limit)


def _rule(given: EmbedArguments, pass_tokens: int, limit: RowLimit) -> BatchRule:
    if given.batch is None:
        return BatchRule(
            texts=MAX_BATCH_TEXTS, tokens=pass_tokens, characters=limit.held_characters
        )
    return BatchRule(texts=given.batch, characters=limit.held_characters)


def _as_before(choices: Choices, arguments: argparse.Namespace) -> Choices:
    """An unfinished job goes on with the budget and the threads it began with, unless others are named."""
    plan = _unfinished(arguments).get("plan", {})
    known = {"memory_budget": plan.get("budget_bytes"), "threads": plan.get("threads")}
    return _choices({name: value for name, value in known.items() if _is_size(value)} | {**choices})


def _unfinished(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the journal of an unfinished job tells, if there is one to go on with."""
    if arguments.output == STDOUT or arguments.overwrite:
        return {}
    path = Path(arguments.output).resolve()
    return read_job(path.with_name(f"{path.name}.journal")) or {}


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class _Job(NamedTuple):
    """All that one run has at hand."""

    given: EmbedArguments
    arguments: argparse.Namespace
    source: RowSource
    embedder: Embedder
    terms: Terms

    def run(self, form: VectorForm) -> Finished | None:
        output = self._output(form)
        try:
            with _shown(self.arguments) as tell:
                done = run_job(self.source, self._stage(), output, tell)
        except BrokenPipeError:  # found once more, and told, by whoever writes last
            return None
        finally:
            output.close()
        name = self.arguments.output
        return Finished(
            model=self.embedder.label,
            source=self.source.name,
            output="standard output" if name == STDOUT else name,
            skipped=f"{name}.skipped.jsonl" if done.mark.skipped and name != STDOUT else None,
            dimensions=self.embedder.dimensions,
            done=done,
        )

    def _output(self, form: VectorForm) -> Output:
        arguments = self.arguments
        if arguments.output != STDOUT:
            return FileOutput(
                Path(arguments.output),
                form,
                self._identity(),
                overwrite=arguments.overwrite,
                resume=arguments.resume,
            )
        if arguments.resume:
            raise UsageError("output to a pipe cannot be resumed: leave out --resume")
        if sys.stdout is None:
            raise UsageError("standard output is closed")
        return StreamOutput(sys.stdout.buffer, form, _tell_bad)

    def _identity(self) -> dict[str, Any]:
        """What must be the same for the rest of a job to belong to its beginning."""
        given, plan = self.given, self.embedder.plan
        named = self.arguments.input
        return {
            "edgekit": __version__,
            "model": _model_identity(given.model),
            "input": {
                **self.source.identity,
                "format": None if named is None else given.form or format_of(named),
                "field": given.fields.text,
                "id_field": given.fields.id,
                "row_budget_bytes": self.terms.limit.budget_bytes,
            },
            "options": {
                "mode": plan.mode.value,
                "engine": plan.engine,
                "pooling": None if plan.pooling is None else plan.pooling.label,
                "dimensions": plan.dimensions,
                "normalize": given.choices.get("normalize"),
                "truncate": given.choices.get("truncate"),
                "prefix": self.terms.prefix,
                "max_tokens": plan.text_tokens,
                "batch": given.batch or "auto",
            },
            "plan": {
                "budget_bytes": plan.budget_bytes,
                "threads": plan.threads,
                "kernels": plan.kernels,
                "pass_tokens": plan.pass_tokens,
            },
        }

    def _stage(self) -> Stage:
        given, embedder = self.given, self.embedder
        if given.cluster is None:
            return embed_here(embedder, self.source, self.terms)
        from edgekit.embed.bulk.ray_stage import Cluster, Opening, embed_on_ray

        address, workers = given.cluster
        path = Path(given.model).resolve()
        return embed_on_ray(
            Opening(model=str(path), size_bytes=path.stat().st_size, options={**given.choices}),
            embedder,
            self.source,
            self.terms,
            Cluster(
                address=address,
                workers=workers,
                threads=embedder.plan.threads,
                memory_bytes=embedder.plan.budget_bytes,
            ),
        )


def _tell_bad(row: BadRow) -> None:
    if sys.stderr is not None:
        print(printable(f"edgekit: row {row.number:,} skipped: {row.reason}"), file=sys.stderr)


def _model_identity(path: str) -> dict[str, Any]:
    import hashlib  # see _import_all

    with Path(path).open("rb") as file:
        status = os.fstat(file.fileno())
        begin = hashlib.sha256(file.read(_HASHED_BYTES)).hexdigest()
    return {"size_bytes": status.st_size, "modified_ns": status.st_mtime_ns, "beginning": begin}


@contextmanager
def _shown(arguments: argparse.Namespace) -> Iterator[Callable[[BulkStatus], None] | None]:
    """A line that is written over and over, for a person who looks at it."""
    if arguments.quiet or arguments.json or not is_terminal(sys.stderr):
        yield None
        return

    next_s = 0.0

    def tell(status: BulkStatus) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            show_progress(progress_line(status, width=screen_width()))
            next_s = time.monotonic() + SHOW_EVERY_S

    try:
        yield tell
    finally:
        show_progress("")


def run_embed(arguments: argparse.Namespace) -> tuple[str, int]:
    """The answer as text, and its exit code."""
    given = read_arguments(arguments)
    _check_together(given, arguments)
    quiet = arguments.json or arguments.quiet
    with open_session(arguments, quiet=quiet, confirm=confirmed(arguments)) as session:
        found = find_weights(given.model, reach=session.reach, confirm=session.confirm)
    given = replace(given, model=str(found.path))
    reads = arguments.stdio or arguments.input is not None
    if reads and (arguments.plan or arguments.stdio):
        budget = given.choices.get("memory_budget")
        choices = with_input(given.choices, budget if isinstance(budget, int) else None)
        given = replace(given, choices=choices)
    if arguments.plan:
        plan = plan_embedder(given.model, **given.choices)
        return json_text(plan_json(plan)) if arguments.json else plan_text(plan, screen()), 0
    if arguments.stdio:
        with open_embedder(given.model, **given.choices) as embedder:
            ready = {"plan": plan_json(embedder.plan)}
            return "", serve(embedder, prefix=given.prefix_of(embedder), ready=ready)
    if arguments.output is None:
        return _embed_texts(given, arguments), 0
    done = run_bulk(given, arguments)
    if done is None or arguments.quiet:
        return "", 0
    if arguments.json:
        return json_text(done_json(done)), 0
    summary = done_text(done, screen(colour=False))
    if arguments.output != STDOUT:
        return summary, 0
    sys.stderr.write(summary)
    return "", 0


def _check_together(given: EmbedArguments, arguments: argparse.Namespace) -> None:
    """UsageError for what cannot be meant."""
    texts, files = bool(given.texts), arguments.input is not None
    wrong = {
        "give texts on the command line or with --input, not both": texts and files,
        "give texts on the command line, a file with --input, or use --stdio": not (
            texts or files or arguments.stdio or arguments.plan
        ),
        "--stdio reads texts from requests: leave out TEXT, --input, --output, --json and --ray": (
            arguments.stdio
            and (texts or files or arguments.output or arguments.json or given.cluster)
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
            given.cluster is not None and (not files or arguments.input == "-")
        ),
        "--ray needs a --budget, which is per worker": given.cluster is not None
        and given.choices.get("memory_budget") is None,
        "--workers only works with --ray": arguments.workers is not None and given.cluster is None,
    }
    for why, is_so in wrong.items():
        if is_so:
            raise UsageError(why)


def _embed_texts(given: EmbedArguments, arguments: argparse.Namespace) -> str:
    with open_embedder(given.model, **given.choices) as embedder:
        prefix = given.prefix_of(embedder)
        try:
            vectors = embedder.embed(given.texts, prefix=prefix)
        except TextError as error:
            # people count the texts of a command line from one
            index = None if error.index is None else error.index + 1
            raise TextError(error.what, index=index) from error
        tokens = [embedder.count_tokens(text, prefix=prefix) for text in given.texts]
        plan = embedder.plan
    if arguments.json:
        return json_text(vectors_json(plan, tokens, vectors, prefix=prefix))
    return vectors_text(plan, given.texts, tokens, vectors, screen(colour=False))
