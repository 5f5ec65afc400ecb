"""Flags and help of the commands that start an engine, embed, or serve the page. Imports nothing heavy."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from edgekit.cli.commands import (
    ENVIRONMENT,
    JSON,
    MIN_CONTEXT,
    MODEL_FORMS,
    NO_CACHE,
    OFFLINE,
    USERS,
    WINDOW_BUDGET,
    add_download_options,
    add_flags,
    add_flags_of,
    add_limit_options,
    add_network_options,
    add_options,
)
from edgekit.cli.parser import Commands, add_command
from edgekit.engines import machine_keys, startable
from edgekit.engines.flags import COMMON, CONTEXT, QUANT, Whole, read_number
from edgekit.errors import UsageError

DEFAULT_NEW_TOKENS = 512  # in the answer to one prompt
SERVE_PORT = 8080
# Flags that run and serve have for all engines, or set themselves.
SHARED = frozenset({
    "ctx_shift", "sinks", "rolling", "threads", "max_tokens", "mode", "mix", "embeddings", "llama_version",
})  # fmt: skip
_WHOLE = re.compile(r"-?[0-9]{1,18}")


def add_start_options(parser: argparse.ArgumentParser, verb: str) -> None:
    """Options of both `run` and `serve`: the engine, its flags, the context, and what happens before it starts."""
    engines = [engine.name for engine in startable(verb)]
    add_options(parser, {"--engine NAME": f"{' or '.join(engines)} (default {engines[0]})"})
    add_options(
        parser.add_argument_group("the context"),
        {
            "--sinks N": "first tokens that a rolling context never drops (default 0)",
            "--rolling, --context-shift": "drop the oldest tokens of a full context and continue",
            **MIN_CONTEXT,
            **WINDOW_BUDGET,
        },
    )
    add_limit_options(parser)
    add_options(
        parser.add_argument_group("before it starts"),
        {
            "--download-up-to SIZE": "largest download to make (default: anything that fits)",
            "--no-download": "never download",
            "-y, --yes": "download a model of the catalog without asking",
            "-t, --threads N": "CPU threads (default: one per core)",
            "--force": "start even if the model does not fit (it may swap, or be killed)",
        },
    )
    add_network_options(parser)
    text = "context in tokens: 8192, 32k, 0 for the native context (default: what the job needs)"
    add_flags(parser, COMMON, "every engine", (CONTEXT._replace(help=text), QUANT))
    add_flags_of(parser, tuple(engines), without=machine_keys() | SHARED)


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
    add_options(
        parser,
        {
            "--json": "print the answer and its figures as JSON (docs/run.md)",
            "-q, --quiet": "print the answer alone",
        },
    )
    group = parser.add_argument_group("the prompt")
    add_options(
        group.add_mutually_exclusive_group(),
        {
            "-p, --prompt TEXT": "prompt to answer (default: a chat)",
            "-f, --file FILE": "read the prompt from a file; - is standard input",
        },
    )
    add_options(
        group,
        {
            "--system TEXT": "system prompt",
            "--raw": "continue the text as it is, without the model's chat template",
            "-n, --max-tokens, --n-predict N": f"most new tokens (default {DEFAULT_NEW_TOKENS}; in a chat, until the "
            "model ends)",
        },
    )
    group = parser.add_argument_group("sampling")
    for field, (names, metavar, _, text) in SAMPLING_FLAGS.items():
        group.add_argument(*names, dest=field, metavar=metavar, help=text)
    add_start_options(parser, "run")
    add_options(
        parser,
        {
            "--budget SIZE": "memory limit of the whole process, for --engine stream: 512M",
            "--latency FOR": "longest wait for cache pages on disk (--resident): text (1.5 s, default) or "
            "voice (0.2 s)",
        },
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a number") from None


# field of Sampling: (names, metavar, parser, help)
SAMPLING_FLAGS: dict[str, tuple[tuple[str, ...], str, Callable[[str], float], str]] = {
    "temperature": (("--temp", "--temperature"), "T", _number, "temperature; 0 takes the top token (default 0.8)"),
    "top_k": (("--top-k",), "K", Whole(), "sample among the K likeliest tokens (default 40; 0: all)"),
    "top_p": (("--top-p",), "P", _number, "sample among tokens of total probability P (default 0.95; 1: all)"),
    "min_p": (("--min-p",), "P", _number, "drop tokens below P times the likeliest (default 0.05; 0: none)"),
    "repeat_penalty": (("--repeat-penalty",), "X", _number, "penalty on repeated tokens (default 1: none)"),
    "repeat_last": (("--repeat-last-n",), "N", Whole(), "tokens to look back for repetitions (default 64)"),
    "seed": (("-s", "--seed"), "N", Whole(most=2**32 - 2), "random seed; the same seed gives the same answer"),
}  # fmt: skip


def read_integer(
    flag: str, text: str | None, *, least: int = 0, most: int = 2**31 - 1
) -> int | None:
    """Like read_number, but rejects units: 32k is not a port."""
    if text is not None and _WHOLE.fullmatch(text) is None:
        raise UsageError(f"{flag}: {text[:40]!r} is not a whole number from {least} to {most:,}")
    return read_number(flag, text, least=least, most=most)


def read_host(text: str) -> str:
    """The host without the brackets that an IPv6 address has in a URL."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


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
    add_options(
        parser,
        {
            "--json": "print events as lines of JSON (docs/run.md)",
            "-q, --quiet": "print only the address, and why the server ended",
        },
    )
    group = parser.add_argument_group("the server")
    add_options(
        group,
        {
            "--host ADDRESS": "address to listen on (default 127.0.0.1, this machine only); any other needs --api-key",
            "--port N": f"port to listen on (default {SERVE_PORT}); 0 takes any free port",
            "--api-key KEY": "key that clients must send (or LLAMA_API_KEY)",
            "--insecure": "serve other machines (--host) without --api-key",
            "-a, --alias NAME": "name of the model for clients",
        },
    )
    add_options(parser, USERS)
    add_start_options(parser, "serve")
    parser.set_defaults(host="127.0.0.1", json_lines=True)


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
    add_options(
        parser,
        {
            "--json": "print JSON (docs/verify.md)",
            "--load": "also load the model, decode a few tokens, show the memory the process really "
            "used, and save llama.cpp's overhead for later estimates (edgekit calibrate)",
            "--engine-timeout SECONDS": "time limit for the engine (default 60, with --load 600)",
        },
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
    add_options(
        parser,
        {
            **JSON,
            "--list": "list everything that was measured, on every machine",
            "--remove": "delete everything that was measured",
        },
    )


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
    add_options(
        parser,
        {
            "--json": "print JSON (docs/embed.md)",
            "-q, --quiet": "show no progress and no summary",
            "--plan": "show the memory it would use, and embed nothing",
            "--stdio": "read requests as lines of JSON from standard input (docs/embed.md)",
        },
    )
    add_options(
        parser.add_argument_group("memory and time"),
        {
            "--budget SIZE": "memory budget of the whole process, e.g. 200M (default: as much as is useful, "
            "up to a quarter of the free memory)",
            "--threads N": "number of threads (default: one per core, at most 8)",
            "--engine NAME": "engine to use: edgekit (default) or llama.cpp",
            "--tokenizer-cache FOLDER": "store the tokenizer in this folder, so that the next start is faster and "
            "needs less memory",
            "--max-file SIZE": "refuse models larger than this (default 5 GB)",
        },
    )
    group = parser.add_argument_group("vectors")
    add_options(
        group,
        {
            "--mode NAME": "encoder (default), or tokens: the mean of the token embeddings, without running the model",
            "--pooling NAME": "pooling: mean, cls or last (default: as the file states)",
            "--dimensions N": "keep only the first N dimensions of each vector, for Matryoshka models",
            "--no-normalize": "do not scale vectors to length 1",
            "--truncate": "truncate texts that are too long",
            "--max-tokens N": "maximum tokens per text (default 2048, or the model's context)",
        },
    )
    add_options(
        group.add_mutually_exclusive_group(),
        {
            "--query": "put the model's own query prefix before each text",
            "--document": "put the model's own document prefix before each text",
            "--prefix TEXT": "put this prefix before each text",
        },
    )
    group = parser.add_argument_group("many texts")
    add_options(
        group,
        {
            "--input FILE": "input file: txt (one text per line), jsonl, csv, tsv (also .gz) or parquet; - for "
            "standard input",
            "--format NAME": "input format: txt, jsonl, csv, tsv or parquet (default: from the file name)",
            "--field NAME": "field or column with the text (default text)",
            "--id-field NAME": "field or column with the id, which is copied to the output",
            "--output FILE": "output file: npy, jsonl or parquet; - for JSON lines on standard output",
            "--batch N": "texts per batch (default auto: by tokens)",
            "--skip-bad": "skip rows that cannot be embedded, and list them (default: stop at the first)",
        },
    )
    add_options(
        group.add_mutually_exclusive_group(),
        {
            "--resume": "continue an unfinished job, and fail if there is none (default: continue or start)",
            "--overwrite": "start over; an existing output is replaced once the new one is complete",
        },
    )
    parser.set_defaults(field="text", batch="auto")
    group = parser.add_argument_group("many machines")
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="local",
        help="embed on a Ray cluster, or on local Ray workers; needs --budget, which is per worker",
    )
    add_options(group, {"--workers N": "number of Ray workers (default: one per CPU)"})
    add_download_options(parser)
    add_network_options(parser)


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
    add_options(
        parser,
        {
            "--json": "print one line of JSON when the server is ready (docs/web.md)",
            "--no-browser": "print the address instead of opening the browser",
        },
    )
    add_options(
        parser.add_argument_group("server"),
        {
            "--host ADDRESS": "address to listen on (default 127.0.0.1)",
            "--port N": "port to listen on (default 8421, or the next free one; 0 for any free port)",
            "--token TOKEN": "token that clients must send (or EDGEKIT_WEB_TOKEN); a random one is generated if other "
            "machines can reach the port",
            "--rate N": "requests per second allowed for one client (default 400)",
        },
    )
    add_options(
        parser.add_argument_group("what it may read"),
        {
            "--models-dir DIR...": "folder whose model files may be opened (repeatable)",
            "--allow-private": "also allow servers on this machine and in private networks",
            **OFFLINE,
            "--timeout SECONDS": "network time limit for one model (default 60)",
            **NO_CACHE,
        },
    )
    parser.set_defaults(host="127.0.0.1", json_lines=True, timeout=60.0)
