"""`edgekit embed --stdio` as another program uses it: a real process and real pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.embed_models import write_model
from tests.patience import PATIENCE_S, wait_until
from tests.thoroughness import costly

from edgekit.cli import main
from edgekit.embed import open_embedder, stdio
from edgekit.embed.stdio import Cancel, RequestError, limits_within, read_line
from edgekit.units import KIB, MIB

BUDGET = "400M"
TINY: dict[str, Any] = {
    "layers": 1,
    "width": 64,
    "inner": 128,
    "heads": 2,
    "kv_heads": 2,
    "head_dim": 32,
}
# SLOW_TEXTS take half a minute with this model: long enough to be cancelled.
SLOW: dict[str, Any] = {
    "layers": 2,
    "width": 768,
    "inner": 3072,
    "heads": 12,
    "kv_heads": 12,
    "head_dim": 64,
}
LONG_TEXT = "hello world this is a text " * 50
SLOW_TEXTS = [LONG_TEXT] * 120

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes of POSIX")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", "bert", **TINY)


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("slow") / "slow.gguf", "bert", **SLOW)


class ServerProcess:
    """A server process with its pipes. A thread reads the answers as they come."""

    def __init__(self, model: Path, *options: str, reads: bool = True) -> None:
        arguments = ["embed", str(model), "--stdio", "--budget", BUDGET, *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgekit", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self.ready = json.loads(self._stdout.readline() or b"null")
        self.answers: list[dict[str, Any]] = []
        self.waited_for = 0
        self._arrived = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        if reads:
            self._thread.start()

    def _read(self) -> None:
        for line in self._stdout:
            with self._arrived:
                self.answers.append(json.loads(line))
                self._arrived.notify_all()

    def send(self, *requests: object) -> None:
        lines = (r if isinstance(r, bytes) else json.dumps(r).encode() for r in requests)
        self._stdin.write(b"".join(line + b"\n" for line in lines))
        self._stdin.flush()

    def wait_for(self, count: int, timeout_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        with self._arrived:
            self.waited_for = count
            assert self._arrived.wait_for(lambda: len(self.answers) >= count, timeout_s), (
                self.answers
            )
            return self.answers[:count]

    def can_be_reused(self) -> bool:
        """Whether the next test may use the process: it is running and has no answer outstanding. Clears the answers."""
        with self._arrived:
            is_complete = len(self.answers) == self.waited_for
            self.answers.clear()
            return is_complete and self.process.poll() is None

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Close its input, wait for all answers and the end, and return the exit code."""
        self._stdin.close()
        code = self.process.wait(timeout_s)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return code

    def busy_s(self) -> float:
        """Its CPU time, rounded to 0.1 s, because a waiting process polls now and then."""
        import psutil

        return round(sum(psutil.Process(self.process.pid).cpu_times()[:2]), 1)

    def resident_bytes(self) -> int:
        import psutil

        return int(psutil.Process(self.process.pid).memory_info().rss)


@contextmanager
def running_servers() -> Iterator[Any]:
    opened: list[ServerProcess] = []

    def start(*arguments: Any, **options: Any) -> ServerProcess:
        opened.append(ServerProcess(*arguments, **options))
        return opened[-1]

    yield start
    for server in opened:
        if server.process.poll() is None:
            server.process.kill()
        for stream in (server.process.stdin, server.process.stdout, server.process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        server.process.wait()


@pytest.fixture
def start_server() -> Iterator[Any]:
    with running_servers() as start:
        yield start


@pytest.fixture(scope="module")
def _shared_servers() -> Iterator[Any]:
    """Server processes that are used by one test after another, by model and options."""
    with running_servers() as start:
        running: dict[tuple[Any, ...], ServerProcess] = {}

        def running_or_new(*arguments: Any) -> ServerProcess:
            if arguments not in running or not running[arguments].can_be_reused():
                running[arguments] = start(*arguments)
            return running[arguments]

        yield running_or_new


@pytest.fixture
def server(model: Path, _shared_servers: Any) -> ServerProcess:
    result: ServerProcess = _shared_servers(model, "--prefix", "query: ", "--dimensions", "32")
    return result


@pytest.fixture
def slow_server(slow_model: Path, _shared_servers: Any) -> ServerProcess:
    result: ServerProcess = _shared_servers(slow_model)
    return result


def error_of(answer: dict[str, Any]) -> str:
    return str(answer["error"]["type"])


def test_stdio_vectors_equal_those_of_the_library(model: Path, server: ServerProcess) -> None:
    assert server.ready["ready"] is True
    assert server.ready["dimensions"] == 32
    assert server.ready["plan"]["total_bytes"] < server.ready["plan"]["budget_bytes"]
    texts = ["hello world", "another text", "a third one"]
    server.send({"id": "a", "texts": texts})
    server.wait_for(1)
    server.send({"id": 2, "texts": texts, "encoding": "base64", "prefix": ""})
    first, second = server.wait_for(2)
    with open_embedder(model, memory_budget=BUDGET, dimensions=32) as embedder:
        expected = embedder.embed(texts, prefix="query: "), embedder.embed(texts)
    assert (first["id"], second["id"]) == ("a", 2)
    assert np.array(first["vectors"], dtype=np.float32).tobytes() == expected[0].tobytes()
    packed = b"".join(map(base64.b64decode, second["vectors"]))
    assert packed == expected[1].tobytes()


INVALID_LINES: list[tuple[object, object, str]] = [
    (b"nonsense", None, "not valid JSON"),
    (b"[" * 50_000, None, "nested too deeply"),
    (b"\xff", None, "not UTF-8"),
    ([1], None, "expected an object with fields, found a list"),
    ({"texts": ["a"]}, None, "needs an id"),
    ({"id": True, "texts": ["a"]}, None, "needs an id"),
    ({"id": "x" * 201, "texts": ["a"]}, None, "needs an id"),
    ({"id": 2**53, "texts": ["a"]}, None, "needs an id"),
    ({"id": 1}, 1, "not null"),
    ({"id": 1, "texts": "a"}, 1, "not a string"),
    ({"id": 1, "texts": []}, 1, "0 texts"),
    ({"id": 1, "texts": ["a"] * 5000}, 1, "5,000 texts; a request may have 1 to 4,096"),
    ({"id": 1, "texts": ["a", 5]}, 1, "text 1 is a number"),
    (b'{"id": 1, "texts": ["\\ud800"]}', 1, "text 0 is not a valid string"),
    ({"id": 1, "texts": ["a"], "prefix": 5}, 1, "prefix is not a valid string"),
    ({"id": 1, "texts": ["a"], "deadline_ms": 0}, 1, "deadline_ms"),
    ({"id": 1, "texts": ["a"], "deadline_ms": True}, 1, "deadline_ms"),
    (b'{"id": 1, "texts": ["a"], "deadline_ms": NaN}', 1, "deadline_ms"),
    ({"id": 1, "texts": ["a"], "encoding": "hex"}, 1, "'float' or 'base64'"),
    ({"id": 1, "texts": ["a"], "model": "x"}, 1, "unknown field 'model'"),
    ({"id": 1, "cancel": False}, 1, "nothing else"),
    ({"id": 1, "cancel": True, "texts": []}, 1, "nothing else"),
]


@pytest.mark.parametrize(
    ("line", "request_id", "message"), INVALID_LINES, ids=lambda item: str(item)[:30]
)
def test_stdio_refuses_invalid_lines(line: object, request_id: object, message: str) -> None:
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    with pytest.raises(RequestError, match=message) as caught:
        read_line(data, most_texts=4096)
    assert caught.value.id == request_id


def test_stdio_reads_valid_lines() -> None:
    assert read_line(b'  {"id": 5, "cancel": true} \r', most_texts=1) == Cancel(id=5)
    assert read_line(b" \r", most_texts=1) is None


def test_stdio_error_does_not_affect_other_requests(server: ServerProcess) -> None:
    server.send(*(line for line, _, _ in INVALID_LINES), b"")
    server.send({"id": "ok", "texts": ["fine"]}, {"id": "bad", "texts": ["fine", " ", "x"]})
    server.send({"id": "long", "texts": [LONG_TEXT * 10]})
    answers = server.wait_for(len(INVALID_LINES) + 3)
    assert [error_of(answer) for answer in answers[: len(INVALID_LINES)]] == ["RequestError"] * len(
        INVALID_LINES
    )
    by_id = {answer["id"]: answer for answer in answers[len(INVALID_LINES) :]}
    assert len(by_id["ok"]["vectors"]) == 1
    assert by_id["bad"]["error"] == {
        "type": "TextError",
        "message": "text 1: it is empty",
        "index": 1,
    }
    assert error_of(by_id["long"]) == "TextError"


def test_stdio_endless_line_uses_little_memory(server: ServerProcess) -> None:
    before = server.resident_bytes()
    for _ in range(40):  # 40 MB in one line
        server._stdin.write(b"x" * 1_000_000)
    server.send(b"", {"id": 1, "texts": ["after it"]})
    long, fine = server.wait_for(2)
    assert long == {
        "id": None,
        "error": {"type": "RequestError", "message": "a line longer than 3,276,800 bytes"},
    }
    assert len(fine["vectors"]) == 1
    assert server.resident_bytes() - before < 24_000_000


def test_stdio_answers_all_requests_at_the_end_of_the_input(model: Path, start_server: Any) -> None:
    """There are more requests than may be in flight, and the last line has no line end."""
    server = start_server(model)
    count = 3 * stdio.IN_FLIGHT
    server.send(*({"id": i, "texts": [f"text {i}", "the same"]} for i in range(count)))
    server._stdin.write(b'{"id": %d, "texts": ["without the end of a line", "the same"]}' % count)
    assert server.end() == 0
    assert sorted(answer["id"] for answer in server.answers) == list(range(count + 1))
    same = {tuple(answer["vectors"][1]) for answer in server.answers}
    spread = np.ptp(np.array(sorted(same)), axis=0).max()
    assert spread < 1e-5  # other texts of the batch affect the last bits at most


def test_stdio_refuses_the_id_of_a_running_request(slow_server: ServerProcess) -> None:
    slow_server.send({"id": 1, "texts": SLOW_TEXTS}, {"id": 1, "texts": ["x"]})
    (taken,) = slow_server.wait_for(1)
    assert taken["error"]["message"] == "a request with this id is still running"
    slow_server.send({"id": 1, "cancel": True})
    assert error_of(slow_server.wait_for(2)[1]) == "CancelledError"
    slow_server.send({"id": 1, "texts": ["x"]})  # free again
    assert len(slow_server.wait_for(3)[2]["vectors"]) == 1


def test_stdio_cancel_and_deadline_do_not_wait_for_a_pass(slow_server: ServerProcess) -> None:
    """How soon is measured in benchmarks/: 200 ms on an idle machine."""
    slow_server.send(
        {"id": "cancelled", "texts": SLOW_TEXTS},
        {"id": "late", "texts": SLOW_TEXTS, "deadline_ms": 100},
        {"id": "later", "texts": SLOW_TEXTS, "deadline_ms": 150},
    )
    late = {answer["id"]: error_of(answer) for answer in slow_server.wait_for(2)}
    assert late == {"late": "DeadlineError", "later": "DeadlineError"}
    slow_server.send({"id": "cancelled", "cancel": True}, {"id": "unknown", "cancel": True})
    assert error_of(slow_server.wait_for(3)[2]) == "CancelledError"
    slow_server.send({"id": "next", "texts": ["x"]})  # does not wait for the cancelled pass
    assert slow_server.wait_for(4)[3]["id"] == "next"


def test_stdio_cancelled_request_is_answered_once(server: ServerProcess) -> None:
    server.send(
        {"id": 1, "texts": ["x"] * 500}, {"id": 1, "cancel": True}, {"id": 2, "texts": ["y"]}
    )
    first, second = server.wait_for(2)
    assert {first["id"], second["id"]} == {1, 2}


@costly
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stdio_ends_cleanly_on_signals(
    slow_model: Path, start_server: Any, number: int, code: int
) -> None:
    server = start_server(slow_model)
    server.send({"id": 1, "texts": SLOW_TEXTS}, {"id": 1, "texts": ["x"]})
    (taken,) = server.wait_for(1)
    assert taken["error"]["message"] == "a request with this id is still running"
    server.process.send_signal(number)
    assert server.process.wait(PATIENCE_S) == code
    assert error_of(server.wait_for(2)[1]) == "CancelledError"
    assert server.process.stderr.read() == b""


def test_stdio_stops_reading_if_answers_are_not_read(model: Path, start_server: Any) -> None:
    """With 100 MB of unread answers the process stops reading, stays small, and can still be terminated."""
    server = start_server(model, reads=False)
    request = json.dumps({"id": 0, "texts": ["x"] * 4000}).encode()
    sent = [0]

    def flood() -> None:
        try:
            for number in range(200):
                server.send(request.replace(b'"id": 0', b'"id": %d' % number))
                sent[0] += 1
        except (BrokenPipeError, ValueError):
            pass

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    before = (-1, 0.0)
    # Until it neither reads nor computes any more.
    while not sent[0] or before != (sent[0], server.busy_s()):
        now = (sent[0], server.busy_s())
        before = now
        time.sleep(0.5)
    assert 0 < sent[0] < 150
    assert server.resident_bytes() < 250_000_000
    server.process.terminate()
    assert server.process.wait(PATIENCE_S) == 143
    thread.join(PATIENCE_S)


def serve_in_shell(
    model: Path, streams: str, *, timeout_s: float = PATIENCE_S
) -> tuple[int, bytes]:
    """The exit code and standard error."""
    command = (
        f'exec "{sys.executable}" -m edgekit embed "{model}" --stdio --budget {BUDGET} {streams}'
    )
    process = subprocess.run(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=timeout_s,
        check=False,
    )
    return process.returncode, process.stderr


@pytest.mark.parametrize("streams", ["<&-", ">&-"])
def test_stdio_refuses_closed_streams_before_it_opens_the_model(streams: str) -> None:
    code, errors = serve_in_shell(Path("/no/such/model.gguf"), streams)
    assert code == 2
    name = {"<&-": "input", ">&-": "output"}[streams]
    assert f"standard {name} is closed" in errors.decode()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_stdio_is_an_error_if_the_first_line_cannot_be_written(model: Path) -> None:
    code, errors = serve_in_shell(model, "</dev/zero >/dev/full")
    assert code == 1
    assert b"cannot write to standard output: No space left on device" in errors


def test_stdio_ends_if_the_first_line_has_no_reader(model: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "edgekit", "embed", str(model), "--stdio", "--budget", BUDGET]
    with Path("/dev/zero").open("rb") as endless, os.fdopen(writer, "wb") as unread:
        process = subprocess.run(
            command,
            stdin=endless,
            stdout=unread,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=False,
        )
    assert (process.returncode, process.stderr) == (0, b"")


def catches_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says when the process handles signals")
def test_stdio_can_be_terminated_while_the_first_line_blocks(model: Path) -> None:
    """The pipe is full before the process starts, so its first write blocks."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    command = [sys.executable, "-m", "edgekit", "embed", str(model), "--stdio", "--budget", BUDGET]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=writer) as process:
        try:
            wait_until(lambda: catches_sigterm(process.pid))
            time.sleep(0.3)
            assert process.poll() is None
            process.terminate()
            assert process.wait(PATIENCE_S) == 143
        finally:
            process.kill()
            os.close(reader)
            os.close(writer)


@pytest.mark.parametrize("requests", [[], [{"id": 1, "texts": ["x"]}]], ids=["idle", "request"])
def test_stdio_ends_when_its_reader_closes(
    model: Path, start_server: Any, requests: list[object]
) -> None:
    server = start_server(model, reads=False)
    assert server.ready["ready"] is True
    server._stdout.close()
    if requests:
        server.send(*requests)
    assert server.process.wait(PATIENCE_S) == 0
    assert server.process.stderr.read() == b""


@pytest.mark.parametrize(
    ("budget_bytes", "line_bytes", "texts"),
    [
        (10 * MIB, 256 * KIB, 85),
        (102 * MIB, 102 * MIB // 128, 272),
        (100_000 * MIB, 8_000_000, 2604),
    ],
)
def test_stdio_limits_follow_the_budget(budget_bytes: int, line_bytes: int, texts: int) -> None:
    limits = limits_within(budget_bytes, 384)
    assert (limits.line_bytes, limits.texts) == (line_bytes, texts)
    assert (limits.held_bytes, limits.held_texts) == (2 * line_bytes, 2 * texts)
    assert limits_within(budget_bytes, 10**6).texts >= 1


def test_stdio_first_line_has_the_limits(server: ServerProcess) -> None:
    budget_bytes = server.ready["plan"]["budget_bytes"]
    limits = limits_within(budget_bytes, 32)
    assert server.ready["limits"] == {
        "line_bytes": limits.line_bytes,
        "texts": limits.texts,
        "in_flight": stdio.IN_FLIGHT,
    }
    text = "x" * (limits.line_bytes - len(json.dumps({"id": 1, "texts": [""]})))
    server.send({"id": 1, "texts": [text]}, {"id": 1, "texts": [text + "x"]})
    by_id = {answer["id"]: answer for answer in server.wait_for(2)}
    assert error_of(by_id[1]) == "TextError"  # a line of exactly the limit is read
    assert by_id[None]["error"]["message"] == f"a line longer than {limits.line_bytes:,} bytes"


def test_embed_command_counts_texts_from_one(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", str(model), "fine", " "]) == 2
    assert "text 2: it is empty" in capsys.readouterr().err


def test_stdio_output_has_only_the_protocol(model: Path) -> None:
    """Other output of the process, by Python or C code, goes to standard error."""
    code = (
        "import os, sys, threading\n"
        "from edgekit.embed import open_embedder, stdio\n"
        f"with open_embedder({str(model)!r}, memory_budget='400M') as embedder:\n"
        "    real = embedder.aembed\n"
        "    async def aembed(*arguments, **options):\n"
        "        print('chatter', flush=True)\n"
        "        os.write(1, b'chatter')\n"
        "        return await real(*arguments, **options)\n"
        "    embedder.aembed = aembed\n"
        "    sys.exit(stdio.serve(embedder))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        input=b'{"id": 1, "texts": ["a"]}\n',
        capture_output=True,
        check=True,
    )
    assert [next(iter(json.loads(line))) for line in process.stdout.splitlines()] == ["ready", "id"]
    assert process.stderr == b"chatter\nchatter"


def test_stdio_ends_with_code_4_if_the_model_is_missing(tmp_path: Path, start_server: Any) -> None:
    server = start_server(tmp_path / "none.gguf", reads=False)
    assert server.ready is None
    assert server.process.wait(PATIENCE_S) == 4
    assert b"no such file" in server.process.stderr.read()


# --- from Node

NODE = shutil.which("node")
EXAMPLE = Path(__file__).parents[3] / "examples" / "node" / "embed.mjs"


@pytest.fixture
def node_environment() -> dict[str, str]:
    return os.environ | {"EDGEKIT": f"{sys.executable} -m edgekit"}


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_node_example_with_a_small_heap(model: Path, node_environment: dict[str, str]) -> None:
    texts = [f"text number {i} " + "and more " * (i % 20) for i in range(100)]
    process = subprocess.run(
        [str(NODE), "--max-old-space-size=64", str(EXAMPLE), str(model), "--budget", BUDGET],
        input="\n".join(texts),
        capture_output=True,
        text=True,
        check=True,
        env=node_environment,
        timeout=PATIENCE_S,
    )
    rows = [json.loads(line) for line in process.stdout.splitlines()]
    assert [row["text"] for row in rows] == texts
    with open_embedder(model, memory_budget=BUDGET) as embedder:
        expected = np.vstack([embedder.embed(texts[i : i + 32]) for i in range(0, len(texts), 32)])
    assert (
        np.array([row["vector"] for row in rows], dtype=np.float32).tobytes() == expected.tobytes()
    )


CLIENT = """
import { Embedder } from EXAMPLE;
const embedder = await Embedder.open(process.argv[2], ["--budget", "400M"]);
const seen = {};
const fails = async (name, promise) => promise.catch((error) => { seen[name] = error.type ?? error.name; });
const long = Array(120).fill("hello world this is a text ".repeat(50));
const control = new AbortController();
const running = fails("aborted", embedder.embed(long, { signal: control.signal }));
const late = fails("late", embedder.embed(long, { deadlineMs: 50 }));
setTimeout(() => control.abort(), 100);
await fails("empty", embedder.embed([""]));
await Promise.all([running, late]);
const many = await Promise.all(Array.from({ length: 100 }, (_, i) => embedder.embed([`text ${i}`])));
seen.many = many.length;
seen.dimensions = many[0][0].length === embedder.dimensions;
await embedder.close();
await fails("closed", embedder.embed(["x"]));
console.log(JSON.stringify(seen));
"""


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_node_client_errors_cancellation_and_concurrency(
    slow_model: Path, node_environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "client.mjs"
    script.write_text(CLIENT.replace("EXAMPLE", json.dumps(EXAMPLE.as_uri())), encoding="utf-8")
    process = subprocess.run(
        [str(NODE), "--max-old-space-size=64", str(script), str(slow_model)],
        capture_output=True,
        text=True,
        check=True,
        env=node_environment,
        timeout=PATIENCE_S,
    )
    assert json.loads(process.stdout) == {
        "aborted": "CancelledError",
        "late": "DeadlineError",
        "empty": "TextError",
        "many": 100,
        "dimensions": True,
        "closed": "Error",
    }
