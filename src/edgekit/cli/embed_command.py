"""`edgekit embed MODEL`: parse, call, print."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.cli.check_command import add_download_options, confirmed
from edgekit.cli.options import (
    ENVIRONMENT,
    add_reach_options,
    reach_of,
    screen,
)
from edgekit.cli.parser import COMMANDS
from edgekit.errors import TextError, UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.cli.embedding import EmbedArguments
    from edgekit.embed.opening import Choices

_DESCRIPTION = """\
Computes embeddings with a GGUF model of any size within a memory budget: weights are read from disk as needed.
Give a few texts, or a file with millions of them; an interrupted job can be continued.
"""
_EPILOG = """
MODEL is a GGUF file, a model in Ollama or LM Studio on this machine, or a hub id (org/name:Q8_0).

examples:
  edgekit embed model.gguf "What is a panda?" "A bear of China."
  edgekit embed model.gguf "What is a panda?" --query --json
  edgekit embed model.gguf --input texts.txt --output vectors.npy --budget 200M
  edgekit embed model.gguf --input rows.jsonl --field body --id-field id --output vectors.parquet --skip-bad
  zcat rows.csv.gz | edgekit embed model.gguf --input - --format csv --output - > vectors.jsonl
  edgekit embed model.gguf --plan --budget 100M
  edgekit embed model.gguf --stdio

To continue a job that was interrupted, run the same command again; the result is the same as in one go.

exit codes: 0 done, 1 the output could not be written, 2 usage or a text or row that cannot be embedded, 3 does not
fit in memory, 4 not found or not readable, 5 damaged or unsupported model, 130 interrupted
"""
_PREFIXES = ("query", "document")


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "embed",
        help=COMMANDS["embed"],
        usage="edgekit embed MODEL [TEXT ...] [--input FILE --output FILE] [--budget SIZE] [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG + "\n" + ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "models",
        metavar="MODEL [TEXT ...]",
        nargs="+",
        help="the model, then the texts to embed (docs/embed.md)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/embed.md)")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="show no progress and no summary"
    )
    parser.add_argument(
        "--plan", action="store_true", help="show the memory it would use, and embed nothing"
    )
    parser.add_argument(
        "--stdio",
        action="store_true",
        help="read requests as lines of JSON from standard input (docs/embed.md)",
    )
    _add_memory(parser)
    _add_vectors(parser)
    _add_files(parser)
    _add_ray(parser)
    add_download_options(parser)
    add_reach_options(parser)
    parser.set_defaults(run=run)


def _add_memory(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("memory and time")
    group.add_argument(
        "--budget",
        metavar="SIZE",
        help=(
            "memory budget of the whole process, e.g. 200M (default: as much as is useful, "
            "up to a quarter of the free memory)"
        ),
    )
    group.add_argument(
        "--threads", metavar="N", help="number of threads (default: one per core, at most 8)"
    )
    group.add_argument(
        "--engine", metavar="NAME", help="engine to use: edgekit (default) or llama.cpp"
    )
    group.add_argument(
        "--tokenizer-cache",
        metavar="FOLDER",
        help=(
            "store the tokenizer in this folder, so that the next start is faster and needs "
            "less memory"
        ),
    )
    group.add_argument(
        "--max-file", metavar="SIZE", help="refuse models larger than this (default 5 GB)"
    )


def _add_vectors(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("vectors")
    group.add_argument(
        "--mode",
        metavar="NAME",
        help=(
            "encoder (default), or tokens: the mean of the token embeddings, without running "
            "the model"
        ),
    )
    group.add_argument(
        "--pooling", metavar="NAME", help="pooling: mean, cls or last (default: as the file states)"
    )
    group.add_argument(
        "--dimensions",
        metavar="N",
        help="keep only the first N dimensions of each vector, for Matryoshka models",
    )
    group.add_argument(
        "--no-normalize", action="store_true", help="do not scale vectors to length 1"
    )
    group.add_argument("--truncate", action="store_true", help="truncate texts that are too long")
    group.add_argument(
        "--max-tokens",
        metavar="N",
        help="maximum tokens per text (default 2048, or the model's context)",
    )
    prefix = group.add_mutually_exclusive_group()
    for name in _PREFIXES:
        prefix.add_argument(
            f"--{name}",
            action="store_true",
            help=f"put the model's own {name} prefix before each text",
        )
    prefix.add_argument("--prefix", metavar="TEXT", help="put this prefix before each text")


def _add_files(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many texts")
    group.add_argument(
        "--input",
        metavar="FILE",
        help=(
            "input file: txt (one text per line), jsonl, csv, tsv (also .gz) or parquet; - "
            "for standard input"
        ),
    )
    group.add_argument(
        "--format",
        metavar="NAME",
        help="input format: txt, jsonl, csv, tsv or parquet (default: from the file name)",
    )
    group.add_argument(
        "--field",
        metavar="NAME",
        default="text",
        help="field or column with the text (default text)",
    )
    group.add_argument(
        "--id-field",
        metavar="NAME",
        help="field or column with the id, which is copied to the output",
    )
    group.add_argument(
        "--output",
        metavar="FILE",
        help="output file: npy, jsonl or parquet; - for JSON lines on standard output",
    )
    group.add_argument(
        "--batch", metavar="N", default="auto", help="texts per batch (default auto: by tokens)"
    )
    group.add_argument(
        "--skip-bad",
        action="store_true",
        help="skip rows that cannot be embedded, and list them (default: stop at the first)",
    )
    again = group.add_mutually_exclusive_group()
    again.add_argument(
        "--resume",
        action="store_true",
        help="continue an unfinished job, and fail if there is none (default: continue or start)",
    )
    again.add_argument(
        "--overwrite",
        action="store_true",
        help="start over; an existing output is replaced once the new one is complete",
    )


def _add_ray(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many machines")
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="local",
        help=(
            "embed on a Ray cluster, or on local Ray workers; needs --budget, which is per worker"
        ),
    )
    group.add_argument(
        "--workers", metavar="N", help="number of Ray workers (default: one per CPU)"
    )


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """The answer as text, and its exit code."""
    from edgekit.cli.embedding import read_asked

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
    from edgekit.embed import plan_embedder

    reads = arguments.stdio or arguments.input is not None
    plan = plan_embedder(asked.model, **(_reading(asked) if reads else asked.choices))
    if arguments.json:
        from edgekit.report.embed import plan_json
        from edgekit.report.json import json_text

        return json_text(plan_json(plan))
    from edgekit.report.embed import plan_text

    return plan_text(plan, screen())


def _reading(asked: EmbedArguments) -> Choices:
    from edgekit.cli.embedding import with_input

    budget = asked.choices.get("memory_budget")
    return with_input(asked.choices, budget if isinstance(budget, int) else None)


def _serve(asked: EmbedArguments) -> int:
    from edgekit.embed import open_embedder
    from edgekit.embed.stdio import serve
    from edgekit.report.embed import plan_json

    with open_embedder(asked.model, **_reading(asked)) as embedder:
        return serve(
            embedder, prefix=asked.prefix_of(embedder), ready={"plan": plan_json(embedder.plan)}
        )


def _texts(asked: EmbedArguments, arguments: argparse.Namespace) -> str:
    from edgekit.embed import open_embedder

    with open_embedder(asked.model, **asked.choices) as embedder:
        prefix = asked.prefix_of(embedder)
        try:
            vectors = embedder.embed(asked.texts, prefix=prefix)
        except TextError as error:
            raise _counted_from_one(error) from error
        tokens = [embedder.count_tokens(text, prefix=prefix) for text in asked.texts]
        plan = embedder.plan
    if arguments.json:
        from edgekit.report.embed import vectors_json
        from edgekit.report.json import json_text

        return json_text(vectors_json(plan, tokens, vectors, prefix=prefix))
    from edgekit.report.embed import vectors_text

    return vectors_text(plan, asked.texts, tokens, vectors, screen(colour=False))


def _counted_from_one(error: TextError) -> TextError:
    """As a person counts words on a command line."""
    return TextError(error.what, index=None if error.index is None else error.index + 1)


def _job(asked: EmbedArguments, arguments: argparse.Namespace) -> str:
    from edgekit.cli.embedding import run_asked

    done = run_asked(asked, arguments)
    if done is None or arguments.quiet:
        return ""
    if arguments.json:
        from edgekit.report.embed import done_json
        from edgekit.report.json import json_text

        return json_text(done_json(done))
    from edgekit.report.embed import done_text

    told = done_text(done, screen(colour=False))
    if arguments.output != "-":
        return told
    sys.stderr.write(told)
    return ""
