"""Flags and help of the commands that start an engine, embed, or serve the page. Imports nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from edgekit.cli.commands import add_download_options
from edgekit.cli.options import (
    DEFAULT_NEW_TOKENS,
    ENVIRONMENT,
    MODEL_FORMS,
    add_flags,
    add_network_options,
    add_start_options,
    add_users_option,
    seconds,
)
from edgekit.cli.parser import Commands, add_command
from edgekit.engines import startable
from edgekit.engines.flags import (
    COMMON,
    CONTEXT,
    QUANT,
    whole,
)
from edgekit.errors import UsageError

_RUN_DESCRIPTION = """\
Runs a model inside the memory that it was predicted to need: checks it first, downloads it only if it fits, and starts
the engine with exactly these settings. The context is sized for the job: prompt, new tokens and 64 more.
Without a prompt it starts a chat.
"""
_RUN_EXAMPLES = """
examples:
  edgekit run model.gguf -p "Why is the sky blue?" --max-tokens 200
  edgekit run unsloth/gemma-3-4b-it-GGUF --quant Q4_K_M
  git diff | edgekit run model.gguf --system "Review this change."

engines: llama.cpp (pip install 'edgekit-models[llama]'), or stream, the built-in one (pip install
'edgekit-models[embed]'), which reads weights from disk as it needs them: slow for large models, but in much less
memory than their size (llama, qwen2, qwen3, gemma3)
in a chat: /reset clears the history, /exit or Ctrl-D ends it, Ctrl-C stops an answer

exit codes: 0 done, 2 wrong usage, engine not installed, or refused by it, 3 does not fit or stopped before memory ran
out, 4 not found or no access, 5 unreadable, or the engine died (with its last output), 130 interrupted
"""


def add_run(commands: Commands) -> None:
    parser = add_command(
        commands,
        "run",
        run="launch:run_model",
        usage="edgekit run MODEL [--quant NAME] [-p PROMPT | -f FILE] [-n N] [-c N] [--engine NAME] [options]",
        description=_RUN_DESCRIPTION,
        epilog=MODEL_FORMS + _RUN_EXAMPLES + "\n" + ENVIRONMENT,
    )
    parser.add_argument("model", metavar="MODEL", help="GGUF file, hub id or name")
    parser.add_argument(
        "--json", action="store_true", help="print the answer and its figures as JSON (docs/run.md)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print the answer alone")
    _add_prompt(parser)
    add_sampling_options(parser)
    add_start_options(parser, "run")
    parser.add_argument(
        "--budget",
        metavar="SIZE",
        help="memory limit of the whole process, for --engine stream: 512M",
    )
    parser.add_argument(
        "--latency",
        metavar="FOR",
        help="longest wait for cache pages on disk (--resident): text (1.5 s, default) or voice (0.2 s)",
    )


def _add_prompt(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the prompt")
    one = group.add_mutually_exclusive_group()
    one.add_argument("-p", "--prompt", metavar="TEXT", help="prompt to answer (default: a chat)")
    one.add_argument(
        "-f", "--file", metavar="FILE", help="read the prompt from a file; - is standard input"
    )
    group.add_argument("--system", metavar="TEXT", help="system prompt")
    group.add_argument(
        "--raw",
        action="store_true",
        help="continue the text as it is, without the model's chat template",
    )
    group.add_argument(
        "-n",
        "--max-tokens",
        "--n-predict",
        metavar="N",
        help=f"most new tokens (default {DEFAULT_NEW_TOKENS}; in a chat, until the model ends)",
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a number") from None


# field of Sampling: (names, metavar, parser, help)
SAMPLING_FLAGS: dict[str, tuple[tuple[str, ...], str, Callable[[str], float], str]] = {
    "temperature": (("--temp", "--temperature"), "T", _number, "temperature; 0 takes the top token (default 0.8)"),
    "top_k": (("--top-k",), "K", whole(), "sample among the K likeliest tokens (default 40; 0: all)"),
    "top_p": (("--top-p",), "P", _number, "sample among tokens of total probability P (default 0.95; 1: all)"),
    "min_p": (("--min-p",), "P", _number, "drop tokens below P times the likeliest (default 0.05; 0: none)"),
    "repeat_penalty": (("--repeat-penalty",), "X", _number, "penalty on repeated tokens (default 1: none)"),
    "repeat_last": (("--repeat-last-n",), "N", whole(), "tokens to look back for repetitions (default 64)"),
    "seed": (("-s", "--seed"), "N", whole(most=2**32 - 2), "random seed; the same seed gives the same answer"),
}  # fmt: skip


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    for field, (names, metavar, _, text) in SAMPLING_FLAGS.items():
        group.add_argument(*names, dest=field, metavar=metavar, help=text)


SERVE_PORT = 8080


_SERVE_DESCRIPTION = """\
Serves a model with llama.cpp's OpenAI-compatible server, started with exactly the settings that were checked: context,
KV cache, layers on the GPU, slots, draft model. Requests beyond the slots wait. Memory is watched: the server is
stopped, with a reason, before the system would kill it.
"""
_SERVE_EXAMPLES = """
examples:
  edgekit serve model.gguf
  edgekit serve unsloth/gemma-3-4b-it-GGUF --quant Q4_K_M --port 9000 --users 4 -c 8k
  edgekit serve model.gguf --host 0.0.0.0 --api-key SECRET

endpoints: /v1/chat/completions, /v1/completions, /v1/models, /health (503 while it loads, then 200)
The engine is installed with pip install 'edgekit-models[llama]'. LLAMA_API_KEY sets the key.

exit codes: 0 ended by Ctrl-C or SIGTERM after it was up, 2 wrong usage, port in use, no engine installed, or refused
by it, 3 does not fit or stopped before memory ran out, 4 not found or no access, 5 unreadable, or the engine died
(with its last output), 130 interrupted before it was up
"""


def add_serve(commands: Commands) -> None:
    parser = add_command(
        commands,
        "serve",
        run="launch:run_serve",
        usage="edgekit serve MODEL [--quant NAME] [--port N] [-c N] [--users N] [options]",
        description=_SERVE_DESCRIPTION,
        epilog=MODEL_FORMS + _SERVE_EXAMPLES + "\n" + ENVIRONMENT,
    )
    parser.add_argument("model", metavar="MODEL", help="GGUF file, hub id or name")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print events as lines of JSON (docs/run.md)",
    )
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print only the address, and why the server ended",
    )
    group = parser.add_argument_group("the server")
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on (default 127.0.0.1, this machine only); any other needs --api-key",
    )
    group.add_argument(
        "--port",
        metavar="N",
        help=f"port to listen on (default {SERVE_PORT}); 0 takes any free port",
    )
    group.add_argument(
        "--api-key", metavar="KEY", help="key that clients must send (or LLAMA_API_KEY)"
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="serve other machines (--host) without --api-key",
    )
    group.add_argument("-a", "--alias", metavar="NAME", help="name of the model for clients")
    add_users_option(parser)
    add_start_options(parser, "serve")
    parser.set_defaults(json_lines=True)


_VERIFY_DESCRIPTION = """\
Compares the prediction for a model with what the real llama.cpp on this machine would allocate. Only the
model's header is read: the engine gets a sparse file of the same length without the weights, and computes its
buffer sizes without allocating them.
"""
_VERIFY_EXAMPLES = """
examples:
  edgekit verify model.gguf -c 32k
  edgekit verify unsloth/gemma-3-27b-it-GGUF:Q4_K_M -c 64k -ctk q8_0 -ctv q8_0
  edgekit verify model.gguf --load

The engine is xllamacpp (pip install 'edgekit-models[llama]'; --mode server, the default), or llama.cpp's
llama-fit-params on the PATH (--mode library, or if xllamacpp is not installed).

exit codes: 0 within bounds, 1 outside, 2 usage or refused by the engine's rules, 4 not found or no access,
5 damaged or unsupported model, no engine on this machine, or the engine crashed (its last output is shown)
"""


def add_verify(commands: Commands) -> None:
    parser = add_command(
        commands,
        "verify",
        run="measure:run_verify",
        usage="edgekit verify MODEL [-c N] [llama.cpp flags] [options]",
        description=_VERIFY_DESCRIPTION,
        epilog=MODEL_FORMS + _VERIFY_EXAMPLES + ENVIRONMENT,
    )
    parser.add_argument("model", metavar="MODEL", help="path, hub id, URL or name of a GGUF model")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/verify.md)")
    parser.add_argument(
        "--load",
        action="store_true",
        help="also load the model, decode a few tokens, show the memory the process really "
        "used, and save llama.cpp's overhead for later estimates (edgekit calibrate)",
    )
    parser.add_argument(
        "--engine-timeout",
        metavar="SECONDS",
        type=seconds,
        help="time limit for the engine (default 60, with --load 600)",
    )
    add_network_options(parser)
    add_flags(parser, COMMON, "every engine", (CONTEXT, QUANT))
    (engine, *_) = startable("verify")
    add_flags(parser, engine.name, engine.title, engine.verified_flags)


_CALIBRATE_DESCRIPTION = """\
Measures this machine and saves the results: memory bandwidth, the speed of the disk for temporary files, llama.cpp's
memory overhead, and its speed. llama.cpp runs with MODEL, which must be on this machine, or else with a generated
test model of 409 MiB that is deleted afterwards. Takes about half a minute.
"""
_CALIBRATE_EXAMPLES = """
examples:
  edgekit calibrate
  edgekit calibrate model.gguf
  edgekit calibrate bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
  edgekit calibrate --list
  edgekit calibrate --remove

Results are used for this machine from then on, never for another one given with --device: speeds use the measured
memory bandwidth, llama.cpp's estimates get a line for its measured overhead, and `edgekit hardware` shows both.
Close other programs first: speeds measured on a busy machine are shown but not saved. The engine is xllamacpp (pip
install 'edgekit-models[llama]'); memory and disk speed need numpy (pip install 'edgekit-models[embed]'). What is not
installed is skipped, and the report says so. llama.cpp's overhead is saved only for models with a vocabulary of 100,000
tokens or more; the generated model has one.

exit codes: 0 measured (notes say what could not be), 2 usage, 4 no such model on this machine, or the result cannot be
written, 5 MODEL is damaged, or llama.cpp is not installed or crashed (its last output is shown), 130 interrupted

environment: EDGEKIT_DATA is the folder for the results, TMPDIR the folder for temporary files
"""


def add_calibrate(commands: Commands) -> None:
    parser = add_command(
        commands,
        "calibrate",
        run="measure:run_calibrate",
        usage="edgekit calibrate [MODEL] [--json] | --list [--json] | --remove [--json]",
        description=_CALIBRATE_DESCRIPTION,
        epilog=_CALIBRATE_EXAMPLES,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a GGUF model on this machine: path, hub id or name",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.add_argument(
        "--list", action="store_true", help="list everything that was measured, on every machine"
    )
    parser.add_argument("--remove", action="store_true", help="delete everything that was measured")


_EMBED_DESCRIPTION = """\
Computes embeddings with a GGUF model of any size within a memory budget: weights are read from disk as needed.
Give a few texts, or a file with millions of them; an interrupted job can be continued.
"""
_EMBED_EPILOG = """
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
_EMBED_PREFIXES = ("query", "document")


def add_embed(commands: Commands) -> None:
    parser = add_command(
        commands,
        "embed",
        run="embed:run_embed",
        usage="edgekit embed MODEL [TEXT ...] [--input FILE --output FILE] [--budget SIZE] [options]",
        description=_EMBED_DESCRIPTION,
        epilog=_EMBED_EPILOG + "\n" + ENVIRONMENT,
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
    add_network_options(parser)


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
    for name in _EMBED_PREFIXES:
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


_WEB_DESCRIPTION = """\
Opens a web page that shows which models this machine can run and what each one needs, before you download anything.
The REST API is on the same port, under /api/v1, with documentation at /api/docs. Only this machine can reach them,
unless you set --host; then clients need a token.
"""
_WEB_EXAMPLES = """\
examples:
  edgekit web
  edgekit web Qwen/Qwen3-8B-GGUF:Q4_K_M
  edgekit web model.gguf
  edgekit web --models-dir ~/models --offline
  edgekit web --host 0.0.0.0 --port 8421 --no-browser

The server only reads files in --models-dir (and MODEL), and only contacts servers on this machine or in private
networks with --allow-private. Details: docs/web.md.

environment: EDGEKIT_WEB_TOKEN (safer than --token, because other users can see command lines), BROWSER and those below.
"""
_WEB_CODES = """
exit codes: 0 ended by Ctrl-C or SIGTERM, 1 the address could not be printed, 2 usage, port in use, or
edgekit-models[web] is not installed, 4 a file or folder does not exist or cannot be read
"""


def add_web(commands: Commands) -> None:
    parser = add_command(
        commands,
        "web",
        run="web:run_web",
        usage="edgekit web [MODEL] [--port N] [--no-browser] [--models-dir DIR] [options]",
        description=_WEB_DESCRIPTION,
        epilog=_WEB_EXAMPLES + ENVIRONMENT + _WEB_CODES,
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="open the page of this model")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one line of JSON when the server is ready (docs/web.md)",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address instead of opening the browser"
    )
    _add_server(parser.add_argument_group("server"))
    _add_reach(parser.add_argument_group("what it may read"))
    parser.set_defaults(json_lines=True)


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on (default 127.0.0.1)",
    )
    group.add_argument(
        "--port",
        metavar="N",
        help="port to listen on (default 8421, or the next free one; 0 for any free port)",
    )
    group.add_argument(
        "--token",
        metavar="TOKEN",
        help=(
            "token that clients must send (or EDGEKIT_WEB_TOKEN); a random one is generated "
            "if other machines can reach the port"
        ),
    )
    group.add_argument(
        "--rate", metavar="N", help="requests per second allowed for one client (default 400)"
    )


def _add_reach(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--models-dir",
        metavar="DIR",
        action="append",
        default=[],
        help="folder whose model files may be opened (repeatable)",
    )
    group.add_argument(
        "--allow-private",
        action="store_true",
        help="also allow servers on this machine and in private networks",
    )
    group.add_argument("--offline", action="store_true", help="use local files and caches only")
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=60.0,
        help="network time limit for one model (default 60)",
    )
    group.add_argument(
        "--no-cache", action="store_true", help="do not read or write the header cache on disk"
    )
