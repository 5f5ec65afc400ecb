"""`edgekit embed MODEL`: parse, call, print."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgekit.cli.check_command import add_download_options, confirmed
from edgekit.cli.reach_options import (
    ENVIRONMENT,
    add_reach_options,
    is_terminal,
    reach_of,
    screen_width,
)
from edgekit.errors import TextError, UsageError

if TYPE_CHECKING:  # only to name types: --help must be instant
    from argparse import _SubParsersAction

    from edgekit.cli.embedding import Asked
    from edgekit.embed.opening import Choices

_DESCRIPTION = """\
Vectors of texts, from a GGUF model of any size, inside the memory that is given: weights are read from the disk
as they are needed. A few texts, or a file of millions in one go that can be interrupted and gone on with.
"""
_EPILOG = """
MODEL is a GGUF file, a name in Ollama's or LM Studio's store on this machine, or a hub id (org/name:Q8_0).

examples:
  edgekit embed model.gguf "What is a panda?" "A bear of China."
  edgekit embed model.gguf "What is a panda?" --query --json
  edgekit embed model.gguf --input texts.txt --output vectors.npy --budget 200M
  edgekit embed model.gguf --input rows.jsonl --field body --id-field id --output vectors.parquet --skip-bad
  zcat rows.csv.gz | edgekit embed model.gguf --input - --format csv --output - > vectors.jsonl
  edgekit embed model.gguf --plan --budget 100M
  edgekit embed model.gguf --stdio

A job that was killed goes on when the same command is run again, and gives what it would have given in one go.

exit codes: 0 done, 1 the output could not be written, 2 usage or a text or row that cannot be embedded, 3 does not
fit the memory, 4 not found or not readable, 5 unreadable or unsupported model, 130 interrupted
"""
_PREFIXES = ("query", "document")


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "embed",
        help="vectors of texts, inside the memory that is given",
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
        help="the model, and texts to embed (docs/embed-bulk.md)",
    )
    parser.add_argument("--json", action="store_true", help="for programs (docs/embed-bulk.md)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")
    parser.add_argument(
        "--plan", action="store_true", help="what would be held in memory; embeds nothing"
    )
    parser.add_argument(
        "--stdio",
        action="store_true",
        help="serve requests as lines of JSON (docs/embed-stdio.md)",
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
        help="of the whole process: 200M (default: a quarter of what is free, or what is of use)",
    )
    group.add_argument("--threads", metavar="N", help="default: one for each core, at most 8")
    group.add_argument("--engine", metavar="NAME", help="edgekit (default), or llama.cpp")
    group.add_argument(
        "--tokenizer-cache",
        metavar="FOLDER",
        help="keep the tokenizer there: the next start is faster and takes less memory",
    )
    group.add_argument("--max-file", metavar="SIZE", help="refuse a larger model (default 5 GB)")


def _add_vectors(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("vectors")
    group.add_argument(
        "--mode", metavar="NAME", help="encoder (default), or tokens: the mean of token rows"
    )
    group.add_argument(
        "--pooling", metavar="NAME", help="mean, cls or last (default: as the file says)"
    )
    group.add_argument(
        "--dimensions", metavar="N", help="the first N of each vector, for Matryoshka models"
    )
    group.add_argument("--no-normalize", action="store_true", help="do not scale to length 1")
    group.add_argument("--truncate", action="store_true", help="cut texts that are too long")
    group.add_argument(
        "--max-tokens", metavar="N", help="of one text (default 2048, or the model's window)"
    )
    prefix = group.add_mutually_exclusive_group()
    for name in _PREFIXES:
        prefix.add_argument(
            f"--{name}", action="store_true", help=f"with the model's own words before a {name}"
        )
    prefix.add_argument("--prefix", metavar="TEXT", help="these words before each text")


def _add_files(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many texts")
    group.add_argument(
        "--input",
        metavar="FILE",
        help="txt (a text a line), jsonl, csv, tsv (also .gz), parquet; - for standard input",
    )
    group.add_argument(
        "--format",
        metavar="NAME",
        help="of the input: txt, jsonl, csv, tsv or parquet (default: by its name)",
    )
    group.add_argument(
        "--field", metavar="NAME", default="text", help="where the text is (default text)"
    )
    group.add_argument("--id-field", metavar="NAME", help="what to name a vector by")
    group.add_argument(
        "--output", metavar="FILE", help="npy, jsonl or parquet; - for JSON lines on stdout"
    )
    group.add_argument(
        "--batch", metavar="N", default="auto", help="texts at a time (default auto: by tokens)"
    )
    group.add_argument(
        "--skip-bad",
        action="store_true",
        help="pass over rows that cannot be embedded, and list them (default: stop at the first)",
    )
    again = group.add_mutually_exclusive_group()
    again.add_argument(
        "--resume",
        action="store_true",
        help="only go on with an unfinished job (default: go on, or begin)",
    )
    again.add_argument(
        "--overwrite",
        action="store_true",
        help="begin anew: replaces an existing output when the new one is whole",
    )


def _add_ray(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many machines")
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="local",
        help="embed on a Ray cluster, or on workers started here; needs --budget, for each worker",
    )
    group.add_argument(
        "--workers", metavar="N", help="how many (default: as many as there are CPUs)"
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


def _check_together(asked: Asked, arguments: argparse.Namespace) -> None:
    """UsageError for what cannot be meant."""
    texts, files = bool(asked.texts), arguments.input is not None
    wrong = {
        "texts come from the command line or from --input, not from both": texts and files,
        "name texts, or a file of them with --input, or serve with --stdio": not (
            texts or files or arguments.stdio or arguments.plan
        ),
        "--stdio takes its texts from requests: no TEXT, --input, --output, --json or --ray": (
            arguments.stdio
            and (texts or files or arguments.output or arguments.json or asked.cluster)
        ),
        "standard input is closed": (
            sys.stdin is None and (arguments.stdio or arguments.input == "-")
        ),
        "standard output is closed": (
            sys.stdout is None and (arguments.stdio or arguments.output == "-")
        ),
        "--input needs an --output: a file, or - for lines of JSON": (
            files and arguments.output is None and not arguments.plan
        ),
        "--json is for the summary, and standard output has the vectors": (
            arguments.json and arguments.output == "-"
        ),
        "--ray reads a file: --input FILE --output FILE": (
            asked.cluster is not None and (not files or arguments.input == "-")
        ),
        "--ray needs a --budget, for each worker": asked.cluster is not None
        and asked.choices.get("memory_budget") is None,
        "--workers are Ray's: add --ray": arguments.workers is not None and asked.cluster is None,
    }
    for why, is_so in wrong.items():
        if is_so:
            raise UsageError(why)


def _plan(asked: Asked, arguments: argparse.Namespace) -> str:
    from edgekit.embed import plan_embedder

    reads = arguments.stdio or arguments.input is not None
    plan = plan_embedder(asked.model, **(_reading(asked) if reads else asked.choices))
    if arguments.json:
        from edgekit.report.as_json import json_text
        from edgekit.report.embed_json import plan_json

        return json_text(plan_json(plan))
    from edgekit.report.embed_text import plan_text

    return plan_text(plan, width=screen_width(), bold=is_terminal(sys.stdout))


def _reading(asked: Asked) -> Choices:
    from edgekit.cli.embedding import with_input

    budget = asked.choices.get("memory_budget")
    return with_input(asked.choices, budget if isinstance(budget, int) else None)


def _serve(asked: Asked) -> int:
    from edgekit.embed import open_embedder
    from edgekit.embed.stdio import serve
    from edgekit.report.embed_json import plan_json

    with open_embedder(asked.model, **_reading(asked)) as embedder:
        return serve(
            embedder, prefix=asked.prefix_of(embedder), ready={"plan": plan_json(embedder.plan)}
        )


def _texts(asked: Asked, arguments: argparse.Namespace) -> str:
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
        from edgekit.report.as_json import json_text
        from edgekit.report.embed_json import vectors_json

        return json_text(vectors_json(plan, tokens, vectors, prefix=prefix))
    from edgekit.report.embed_text import vectors_text

    return vectors_text(plan, asked.texts, tokens, vectors, width=screen_width())


def _counted_from_one(error: TextError) -> TextError:
    """As a person counts words on a command line."""
    return TextError(error.what, index=None if error.index is None else error.index + 1)


def _job(asked: Asked, arguments: argparse.Namespace) -> str:
    from edgekit.cli.embedding import run_asked

    done = run_asked(asked, arguments)
    if done is None or arguments.quiet:
        return ""
    if arguments.json:
        from edgekit.report.as_json import json_text
        from edgekit.report.embed_json import done_json

        return json_text(done_json(done))
    from edgekit.report.embed_text import done_text

    told = done_text(done, width=screen_width())
    if arguments.output != "-":
        return told
    sys.stderr.write(told)
    return ""
