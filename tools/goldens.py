"""Record EdgeKit's answers to some 800 questions under tests/golden.

    python tools/goldens.py               # record all answers
    python tools/goldens.py --only check  # record the groups whose name begins with "check"
    python tools/goldens.py --check       # compare instead; prints a diff, exit code 1 if an answer differs

A changed answer is a diff in these files: read every one of them before it is committed. They are written in the
short notation of golden_text.py: `= A .. B` repeats the lines from A to B of another answer. `#1a2b3c4d` is the hash of
a long part of the answer: it keeps the files short and changes with the part, which may be recorded nowhere else. So
recording and --check print every changed answer with the new text of each hash that changed in it (its first 600
characters; to see all of it, run the command or the request that the answer belongs to).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import difflib
import enum
import inspect
import io
import json
import logging
import os
import platform
import re
import shlex
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import golden_questions, golden_text

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
PYTHON_OF_ARGPARSE = (3, 11)  # later ones print help and errors differently
_MARK = "==== "


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The title of a question in the golden file, and the function that answers it."""

    title: str
    ask: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The questions of one golden file."""

    name: str
    questions: tuple[Question, ...]
    by_argparse: bool = False  # the answers depend on the version of Python
    repeats: Callable[[str], str] = str  # question -> the question whose answer it partly repeats
    repeats_from: tuple[str, ...] = ()  # groups that may have that question

    @property
    def path(self) -> Path:
        return GOLDEN / f"{self.name}.txt"

    @property
    def is_comparable(self) -> bool:
        return not self.by_argparse or sys.version_info[:2] == PYTHON_OF_ARGPARSE

    def answers(self, only: Iterable[Question] | None = None) -> dict[str, str]:
        """Title -> answer. Raises RuntimeError if a question needs the network."""
        with same_everywhere() as home:
            chosen = self.questions if only is None else only
            return {item.title: _tidy(item.ask(), home) for item in chosen}

    def recorded(self) -> dict[str, str]:
        """Title -> recorded answer, in full."""
        known = self._known()
        return {
            title: golden_text.lengthened(answer, self._base(title, known))
            for title, answer in _written(self.path).items()
        }

    def record(self, answers: Mapping[str, str]) -> None:
        known = self._known() | dict(answers)
        blocks = (
            f"{_MARK}{title}\n{golden_text.shortened(answer, self._base(title, known))}"
            for title, answer in answers.items()
        )
        self.path.write_text("".join(blocks), encoding="utf-8", newline="\n")

    def _known(self) -> dict[str, str]:
        files = (_written(GOLDEN / f"{name}.txt") for name in self.repeats_from)
        return {title: answer for file in files for title, answer in file.items()}

    def _base(self, title: str, known: Mapping[str, str]) -> str:
        base = self.repeats(title)
        return "" if base == title else known.get(base, "")


def _written(path: Path) -> dict[str, str]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    blocks = re.split(rf"^{_MARK}", text, flags=re.MULTILINE)[1:]
    return {title: answer for title, _, answer in (block.partition("\n") for block in blocks)}


def main() -> int:
    """Return 1 if --check found a difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the recorded answers")
    parser.add_argument("--only", default="", metavar="GROUP", help="groups whose name begins so")
    arguments = parser.parse_args()
    chosen = [group for group in GROUPS if group.name.startswith(arguments.only)]
    if not chosen:
        parser.error(
            f"--only {arguments.only}: the groups are {', '.join(item.name for item in GROUPS)}"
        )
    changed_groups = 0
    before = {group.name: group.recorded() for group in chosen}
    for group in chosen:
        if not group.is_comparable:
            print(
                f"{group.name}: skipped, recorded by Python {PYTHON_OF_ARGPARSE}", file=sys.stderr
            )
            continue
        answers = group.answers()
        result = difference(before[group.name], answers)
        changed_groups += bool(result)
        if not arguments.check:
            group.record(answers)
            print(f"{group.name}: {len(answers)} answers{', changed' if result else ''}")
        print(result, end="")
    return int(arguments.check and bool(changed_groups))


def difference(recorded: Mapping[str, str], answers: Mapping[str, str]) -> str:
    """A diff for each changed, new or removed answer, with the texts of its new hashes; "" if there is none."""
    parts = []
    for title in dict.fromkeys((*recorded, *answers)):
        before, after = recorded.get(title, ""), answers.get(title, "")
        if before != after:
            lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
            texts = golden_text.hashed_texts(before, after)
            parts.append("\n".join((f"{_MARK}{title}", *list(lines)[2:], *texts, "", "")))
    return "".join(parts)


@contextlib.contextmanager
def same_everywhere() -> Iterator[str]:
    """A fixed width, CPU, system and llama.cpp version, no network, and an empty home, whose path is yielded."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = os.path.realpath(folder)
        inherited = {
            name: value for name, value in os.environ.items() if name in {"PATH", "SYSTEMROOT"}
        }
        environment = inherited | {
            "HOME": home,
            "USERPROFILE": home,
            "HF_HOME": home,
            "EDGEKIT_CACHE": home,
            "EDGEKIT_DATA": home,
            "EDGEKIT_LLAMA_VERSION": "0.6",
            "NO_COLOR": "1",
            "COLUMNS": "80",
            "LINES": "24",
        }
        stack.enter_context(mock.patch.dict(os.environ, environment, clear=True))
        cores = set(range(8))
        for place, name, value in (
            (platform, "machine", "x86_64"),
            (os, "cpu_count", len(cores)),
            (os, "sched_getaffinity", cores),
        ):
            patched = mock.patch.object(place, name, mock.Mock(return_value=value), create=True)
            stack.enter_context(patched)
        stack.enter_context(mock.patch.object(sys, "platform", "linux"))
        for name in ("getaddrinfo", "create_connection"):
            stack.enter_context(mock.patch.object(socket, name, _no_network))
        for path, text in golden_questions.FILES.items():
            file = Path(home, path)
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        # So the cards of a page are computed in a thread of this process, which has these settings.
        stack.enter_context(mock.patch.object(BaseProcess, "start", side_effect=OSError))
        stack.enter_context(mock.patch.object(logging, "lastResort", logging.NullHandler()))
        stack.enter_context(contextlib.chdir(home))
        yield home


def _no_network(*address: object, **_: object) -> None:
    raise RuntimeError(f"a golden question must not need the network: {address}")


def _tidy(answer: str, home: str) -> str:
    lines = (line.rstrip() for line in answer.replace(home, "~").splitlines())
    text = golden_text.with_short_bars("\n".join(lines).strip("\n"))
    return golden_text.with_short_lists(text) + "\n\n"


def _command(line: str) -> Question:
    title = f"edgekit {line}".rstrip()
    return Question(title=title, ask=lambda: _run(shlex.split(line), in_full=_is_in_full(title)))


def _is_in_full(title: str) -> bool:
    return title in golden_questions.IN_FULL or title.startswith(golden_questions.IN_FULL_VERBS)


def output_of(words: list[str]) -> tuple[object, str, str]:
    """Exit code, standard output and standard error of a command."""
    from edgekit.cli import main as edgekit

    # the encoding decides how bars are drawn
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = edgekit(words)
        except SystemExit as end:
            code = end.code or 0
    for stream in (out, err):
        stream.seek(0)
    return code, out.read(), err.read()


def _run(words: list[str], *, in_full: bool) -> str:
    code, output, errors = output_of(words)
    with contextlib.suppress(ValueError):
        output = _json_text(json.loads(output), in_full=in_full)
    return f"exit code {code}\n{output}" + (f"---- standard error\n{errors}" if errors else "")


def _rest(path: str, fields: golden_questions.Fields | None) -> Question:
    verb = "GET" if fields is None else "POST"
    body = "" if fields is None else f" {json.dumps(fields)}"
    title = f"{verb} /api/v1/{path}{body}"
    return Question(title=title, ask=lambda: _call(verb, path, fields, in_full=_is_in_full(title)))


def _call(verb: str, path: str, fields: golden_questions.Fields | None, *, in_full: bool) -> str:
    status, answer = response_of(verb, path, fields)
    if path == "openapi.json":
        answer = _calls(answer)
    elif path == "devices":
        answer["devices"] = [device["name"] for device in answer["devices"]]
    return f"status {status}\n{_json_text(answer, in_full=in_full)}"


def _calls(openapi: Any) -> Any:
    """The fields of every call, and the type of every field."""
    calls: dict[str, list[str]] = {}
    types: dict[str, Any] = {}
    for path, verbs in openapi["paths"].items():
        for verb, call in verbs.items():
            body = call.get("requestBody", {}).get("content", {}).get("application/json", {})
            name = body.get("schema", {}).get("$ref", "").rpartition("/")[2]
            sent = openapi["components"]["schemas"].get(name, {}).get("properties", {})
            fields = sent | {
                parameter["name"]: parameter["schema"] for parameter in call.get("parameters", ())
            }
            if verb == "get" or "get" not in verbs:  # otherwise the POST lists the same fields
                calls[f"{'/'.join(verbs)} {path}"] = list(fields)
            for key, schema in fields.items():
                hidden = {"title", "description"}
                types[key] = {name: item for name, item in schema.items() if name not in hidden}
    return {"calls": calls, "types": types}


def response_of(
    verb: str,
    path: str,
    fields: golden_questions.Fields | None,
    *,
    models_dirs: tuple[Path, ...] = (),
) -> tuple[int, Any]:
    """The status and the JSON of one request to the application, without a server."""
    from edgekit.web.app import create_app
    from edgekit.web.types import WebSettings

    app = create_app(WebSettings(network=False, cache=False, models_dirs=models_dirs))
    where, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": verb,
        "scheme": "http",
        "path": f"/api/v1/{where}",
        "raw_path": f"/api/v1/{where}".encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1:8421"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8421),
    }
    sent: list[Any] = []

    async def request() -> None:
        body = b"" if fields is None else json.dumps(fields).encode()
        incoming = iter([{"type": "http.request", "body": body, "more_body": False}])
        never = asyncio.Event()

        async def receive() -> Any:
            for message in incoming:
                return message
            await never.wait()  # the client stays connected
            return None

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)

    try:
        asyncio.run(request())
    finally:
        app.state.edgekit.close()
    status = next(item["status"] for item in sent if item["type"] == "http.response.start")
    body = b"".join(item.get("body", b"") for item in sent)
    return status, _events(body) if body.startswith(b"id: ") else json.loads(body)


def _events(body: bytes) -> list[Any]:
    """The data of each event of a stream; of the cards of a page, only the first in full."""
    results = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]
    for card in results[2:-1]:
        needed = [bar["required_bytes"] for bar in card.pop("bars", ())]
        named = ("id", "told", "worth", "speed", "flags")
        card |= {"speed": (card.get("speed") or {}).get("typical"), "bytes": needed}
        for key in card.keys() - {*named, "bytes"}:
            del card[key]
    cards = [item | {"told": golden_text.hashed(item["told"])} for item in results[2:-1]]
    return [*results[:2], cards, *results[-1:]] if cards else results


def _python(name: str, arguments: golden_questions.Fields) -> Question:
    words = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    title = f"{name}({words})"
    return Question(title=title, ask=lambda: _value(name, arguments, in_full=_is_in_full(title)))


def _public(name: str) -> Question:
    def ask() -> str:
        from edgekit import models

        result = getattr(models, name)
        if inspect.isfunction(result):
            return f"{inspect.signature(result)}\n"
        names = set(dir(result)) - set(dir(Exception))
        return _json_text(sorted(item for item in names if not item.startswith("_")), in_full=True)

    return Question(title=f"edgekit.models.{name}", ask=ask)


def _value(name: str, arguments: golden_questions.Fields, *, in_full: bool) -> str:
    """Every public attribute of what a function of edgekit.models returns, or what it raises."""
    from edgekit import models
    from edgekit.errors import EdgekitError
    from edgekit.sources.types import Reach

    try:
        result = getattr(models, name)(**arguments, reach=Reach(network=False))
    except EdgekitError as error:
        return f"raises {type(error).__name__}: {error}\n"
    return _json_text(_plain(result), in_full=in_full)


def _plain(value: Any) -> Any:
    """The value as JSON; machines, cards and budgets in a plan by name only (see "uses" and "hardware")."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        names = [name for name in dir(value) if not name.startswith("_")]
        result = {name: getattr(value, name) for name in names}
        result |= {
            name: getattr(result[name], "name", "")
            for name in ("machine", "variant")
            if name in result
        }
        result |= {
            name: [item.name for item in result[name]]
            for name in ("budgets", "cards")
            if name in result
        }
        return {name: _plain(item) for name, item in result.items() if not callable(item)}
    return value if isinstance(value, str | int | float | None) else repr(value)


def _json_text(value: Any, *, in_full: bool) -> str:
    value = _without_layers(value)
    return golden_text.json_text(value if in_full else golden_text.brief(value))


def _without_layers(value: Any) -> Any:
    """Adds up the entries of a list that are about one layer each."""
    if isinstance(value, dict):
        return {key: _without_layers(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    result: dict[object, Any] = {}
    for place, item in enumerate(value):
        if not isinstance(item, dict) or item.get("layer") is None:
            result[place] = _without_layers(item)
            continue
        numbers = {key: part for key, part in item.items() if type(part) is int and key != "layer"}
        same = {
            key: part for key, part in item.items() if type(part) is not int and key != "because"
        }
        sums = result.setdefault(json.dumps(same), same | {"layers": 0} | dict.fromkeys(numbers, 0))
        sums["layers"] += 1
        for key, part in numbers.items():
            sums[key] = sums.get(key, 0) + part
    return list(result.values())


def _commands(
    name: str, lines: Iterable[str], before: str = "", after: str = "", **more: Any
) -> Group:
    questions = tuple(_command(f"{before}{line}{after}") for line in lines)
    return Group(name=name, questions=questions, **more)


GROUPS = (
    _commands("check_text", golden_questions.CHECK_TEXT, "check "),
    _commands("check_json", golden_questions.CHECK_JSON, "check ", " --json"),
    _commands(
        "plan_text",
        golden_questions.PLAN_TEXT,
        "plan ",
        repeats=lambda title: title.replace(" plan ", " check ", 1),
        repeats_from=("check_text",),
    ),
    _commands("plan_json", golden_questions.PLAN_JSON, "plan ", " --json"),
    _commands("recommend_text", golden_questions.RECOMMEND_TEXT, "recommend "),
    _commands("recommend_json", golden_questions.RECOMMEND_JSON, "recommend ", " --json"),
    _commands("search", golden_questions.SEARCH),
    _commands("compare", golden_questions.COMPARE),
    _commands("estimate", golden_questions.ESTIMATE),
    _commands("inspect", golden_questions.INSPECT),
    _commands("hardware", golden_questions.HARDWARE),
    _commands("catalog", golden_questions.CATALOG),
    _commands("errors", golden_questions.ERRORS),
    _commands(
        "help",
        golden_questions.HELP,
        by_argparse=True,
        repeats=lambda _: "edgekit check --help",
        repeats_from=("help",),
    ),
    _commands("usage", golden_questions.USAGE, by_argparse=True),
    Group(
        name="rest",
        questions=tuple(_rest(*item) for item in golden_questions.REST),
        repeats=lambda title: golden_questions.SAME_JSON.get(title, title),
        repeats_from=("check_json", "plan_json", "hardware", "catalog"),
    ),
    Group(name="python", questions=tuple(_python(*item) for item in golden_questions.PYTHON)),
    Group(name="public", questions=tuple(_public(item) for item in golden_questions.PUBLIC)),
)


if __name__ == "__main__":
    sys.exit(main())
