"""Arguments of `edgekit embed` -> one bulk job: what is embedded, with what, to where, and how it is told."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from edgekit import __version__
from edgekit.cli.check import confirmed
from edgekit.cli.options import is_terminal, reach_of, screen, screen_width, show_progress
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
from edgekit.errors import TextError, UsageError
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
from edgekit.terminal import printable
from edgekit.units import parse_size

if TYPE_CHECKING:
    from edgekit.embed.embedder import Embedder
    from edgekit.embed.open import Choices
    from edgekit.sources.download import Download
    from edgekit.sources.types import Reach


MOST_TEXTS = 256  # of a batch by tokens: as many as a pass holds
SHOW_EVERY_S = 0.2
STDOUT = "-"

_HASHED_BYTES = 2**20  # the beginning of a model has its keys, and the places of its tensors
_THREADS_ON_RAY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedArguments:
    """What the command line asks for, read."""

    model: str
    texts: tuple[str, ...]
    choices: Choices
    prefix: str | None  # None: the model's own for a task
    task: str | None
    form: str | None  # of the input; None: by its name
    fields: Fields
    batch: int | None
    cluster: tuple[str, int | None] | None  # where Ray is, and how many workers

    def found(self, reach: Reach, confirm: Callable[[Download], bool] | None) -> EmbedArguments:
        """With the path of the model in place of its name."""
        found = find_weights(self.model, reach=reach, confirm=confirm)
        return replace(self, model=str(found.path))

    def prefix_of(self, embedder: Embedder) -> str:
        if self.task is not None:
            return embedder.prefix(self.task)
        return self.prefix or ""


def read_asked(arguments: argparse.Namespace) -> EmbedArguments:
    """UsageError that names the option."""
    read = _Reader(arguments)
    choices: dict[str, Any] = {
        "own_process": arguments.ray
        is None,  # what a worker of Ray itself takes is not ours to promise
        "memory_budget": read("budget", parse_size),
        "threads": read("threads", whole(1, 1024)),
        "engine": read("engine", one_of(*ENGINES)) or BUILT_IN,
        "tokenizer_cache": arguments.tokenizer_cache,
        "mode": read("mode", one_of("encoder", "tokens")) or "encoder",
        "pooling": read("pooling", one_of("mean", "cls", "last")),
        "dimensions": read("dimensions", whole(1)),
        "normalize": not arguments.no_normalize,
        "truncate": arguments.truncate,
        "limits": _limits(read("max_file", parse_size), read("max_tokens", whole(1))),
    }
    if arguments.ray is not None:
        choices["threads"] = choices["threads"] or _THREADS_ON_RAY
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


class _Reader:
    """Options by name; what is wrong with one is told with it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments

    def __call__(self, name: str, read: Callable[[str], Any]) -> Any:
        text = getattr(self._arguments, name)
        try:
            return None if text is None else read(text)
        except UsageError as error:
            raise UsageError(f"--{name.replace('_', '-')}: {error}") from error


def _choices(values: Mapping[str, Any]) -> Choices:
    found = {name: value for name, value in values.items() if value is not None}
    return cast("Choices", found)


def _limits(file_bytes: int | None, tokens: int | None) -> Limits:
    usual = Limits()
    return Limits(
        file_bytes=file_bytes or usual.file_bytes,
        held_tensor_bytes=usual.held_tensor_bytes,
        tokens=tokens or usual.tokens,
        text_bytes=usual.text_bytes,
    )


def run_asked(asked: EmbedArguments, arguments: argparse.Namespace) -> Finished | None:
    """The job from end to end; None where nobody reads its output any more."""
    kind = output_format(arguments.output)
    _check_apart(asked, arguments)
    _import_all(kind, asked, arguments)
    limit = _row_limit(asked.choices, arguments)
    source = _source(asked, arguments, limit)
    try:
        choices = _as_before(asked.choices, arguments)
        if arguments.input is not None:
            choices = with_input(choices, limit.budget_bytes)
        asked = replace(asked, choices=choices)
        with open_embedder(asked.model, **asked.choices) as embedder:
            terms = Terms(
                name=source.name,
                rule=_rule(asked, embedder.plan.pass_tokens, limit),
                prefix=asked.prefix_of(embedder),
                skip_bad=arguments.skip_bad,
                limit=limit,
            )
            form = form_of(
                kind,
                dimensions=embedder.dimensions,
                ids=asked.fields.id is not None,
                integer_ids=source.integer_ids,
            )
            return _Job(asked, arguments, source, embedder, terms).run(form)
    finally:
        source.close()


def with_input(choices: Choices, budget_bytes: int | None) -> Choices:
    """The budget holds what is read too."""
    return {**choices, "input_bytes": input_bytes_for(budget_bytes)}


def _import_all(kind: str, asked: EmbedArguments, arguments: argparse.Namespace) -> None:
    """What is not installed is reported before there is an unfinished job; what is, is counted by the plan."""
    if arguments.output != STDOUT or arguments.input == STDIN:
        import hashlib  # noqa: F401 - 3 MiB with OpenSSL, for marks and for what was read from a pipe
    if kind == "parquet":
        from edgekit.embed.bulk.parquet import arrow

        arrow()
    if asked.cluster is not None:
        from edgekit.embed.bulk.ray_stage import import_ray

        import_ray()


def _check_apart(asked: EmbedArguments, arguments: argparse.Namespace) -> None:
    if arguments.output == STDOUT:
        return
    others: dict[str, Path | int] = {"the model": Path(asked.model)}
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


def _source(asked: EmbedArguments, arguments: argparse.Namespace, limit: RowLimit) -> RowSource:
    if arguments.input is None:
        return GivenTexts(asked.texts)
    return open_source(arguments.input, form=asked.form, fields=asked.fields, limit=limit)


def _rule(asked: EmbedArguments, pass_tokens: int, limit: RowLimit) -> BatchRule:
    if asked.batch is None:
        return BatchRule(texts=MOST_TEXTS, tokens=pass_tokens, characters=limit.held_characters)
    return BatchRule(texts=asked.batch, characters=limit.held_characters)


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

    asked: EmbedArguments
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
        asked, plan = self.asked, self.embedder.plan
        named = self.arguments.input
        return {
            "edgekit": __version__,
            "model": _model_identity(asked.model),
            "input": {
                **self.source.identity,
                "format": None if named is None else asked.form or format_of(named),
                "field": asked.fields.text,
                "id_field": asked.fields.id,
                "row_budget_bytes": self.terms.limit.budget_bytes,
            },
            "options": {
                "mode": plan.mode.value,
                "engine": plan.engine,
                "pooling": None if plan.pooling is None else plan.pooling.label,
                "dimensions": plan.dimensions,
                "normalize": asked.choices.get("normalize"),
                "truncate": asked.choices.get("truncate"),
                "prefix": self.terms.prefix,
                "max_tokens": plan.text_tokens,
                "batch": asked.batch or "auto",
            },
            "plan": {
                "budget_bytes": plan.budget_bytes,
                "threads": plan.threads,
                "kernels": plan.kernels,
                "pass_tokens": plan.pass_tokens,
            },
        }

    def _stage(self) -> Stage:
        asked, embedder = self.asked, self.embedder
        if asked.cluster is None:
            return embed_here(embedder, self.source, self.terms)
        from edgekit.embed.bulk.ray_stage import Cluster, Opening, embed_on_ray

        address, workers = asked.cluster
        path = Path(asked.model).resolve()
        return embed_on_ray(
            Opening(model=str(path), size_bytes=path.stat().st_size, options={**asked.choices}),
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
    asked = read_asked(arguments)
    _check_together(asked, arguments)
    with reach_of(arguments, quiet=arguments.json or arguments.quiet) as reach:
        asked = asked.found(reach, confirmed(arguments, alone=True))
    if arguments.plan:
        return _plan(asked, arguments), 0
    if arguments.stdio:
        return "", _serve(asked)
    if arguments.output is None:
        return _texts(asked, arguments), 0
    return _job(asked, arguments), 0


def _check_together(asked: EmbedArguments, arguments: argparse.Namespace) -> None:
    """UsageError for what cannot be meant."""
    texts, files = bool(asked.texts), arguments.input is not None
    wrong = {
        "give texts on the command line or with --input, not both": texts and files,
        "give texts on the command line, a file with --input, or use --stdio": not (
            texts or files or arguments.stdio or arguments.plan
        ),
        "--stdio reads texts from requests: leave out TEXT, --input, --output, --json and --ray": (
            arguments.stdio
            and (texts or files or arguments.output or arguments.json or asked.cluster)
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
            asked.cluster is not None and (not files or arguments.input == "-")
        ),
        "--ray needs a --budget, which is per worker": asked.cluster is not None
        and asked.choices.get("memory_budget") is None,
        "--workers only works with --ray": arguments.workers is not None and asked.cluster is None,
    }
    for why, is_so in wrong.items():
        if is_so:
            raise UsageError(why)


def _plan(asked: EmbedArguments, arguments: argparse.Namespace) -> str:

    reads = arguments.stdio or arguments.input is not None
    plan = plan_embedder(asked.model, **(_reading(asked) if reads else asked.choices))
    if arguments.json:
        return json_text(plan_json(plan))

    return plan_text(plan, screen())


def _reading(asked: EmbedArguments) -> Choices:

    budget = asked.choices.get("memory_budget")
    return with_input(asked.choices, budget if isinstance(budget, int) else None)


def _serve(asked: EmbedArguments) -> int:

    with open_embedder(asked.model, **_reading(asked)) as embedder:
        return serve(
            embedder, prefix=asked.prefix_of(embedder), ready={"plan": plan_json(embedder.plan)}
        )


def _texts(asked: EmbedArguments, arguments: argparse.Namespace) -> str:

    with open_embedder(asked.model, **asked.choices) as embedder:
        prefix = asked.prefix_of(embedder)
        try:
            vectors = embedder.embed(asked.texts, prefix=prefix)
        except TextError as error:
            raise _counted_from_one(error) from error
        tokens = [embedder.count_tokens(text, prefix=prefix) for text in asked.texts]
        plan = embedder.plan
    if arguments.json:
        return json_text(vectors_json(plan, tokens, vectors, prefix=prefix))

    return vectors_text(plan, asked.texts, tokens, vectors, screen(colour=False))


def _counted_from_one(error: TextError) -> TextError:
    """As a person counts words on a command line."""
    return TextError(error.what, index=None if error.index is None else error.index + 1)


def _job(asked: EmbedArguments, arguments: argparse.Namespace) -> str:

    done = run_asked(asked, arguments)
    if done is None or arguments.quiet:
        return ""
    if arguments.json:
        return json_text(done_json(done))

    told = done_text(done, screen(colour=False))
    if arguments.output != "-":
        return told
    sys.stderr.write(told)
    return ""
