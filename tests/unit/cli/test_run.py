"""`edgekit run` on llama.cpp and on the built-in engine."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.embed_models import write_model
from tests.patience import PATIENCE_S
from tests.runnable import write_chatting, write_endless
from tests.thoroughness import sampled

from edgekit.cli import main
from edgekit.engines.llamacpp.run.program import LlamaCppProgram
from edgekit.machine.what_if import requested_machine

ENGINES = ("llama.cpp", "stream")
RunCli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chatting(tmp_path_factory.mktemp("run") / "run.gguf", tied=False)


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str], model: Path) -> RunCli:
    def run(*argv: object, file: Path = model) -> tuple[int, str, str]:
        code = main(("run", str(file), *map(str, argv)))
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize("engine", ENGINES)
def test_context_is_sized_for_the_prompt_and_the_answer(run_cli: RunCli, engine: str) -> None:
    argv = ("-p", "Hello there", "--max-tokens", 12, "--temp", 0, "--engine", engine, "--json")
    code, out, _ = run_cli(*argv)
    assert code == 0
    answer = json.loads(out)
    assert answer["engine"] == engine
    assert 1 <= answer["new_tokens"] <= 12
    assert answer["finish"] in {"stop", "length"}
    # for llama.cpp a short prompt counts as its bytes, "Hello there" as 11: never too few tokens
    prompt_tokens = 11 if engine == "llama.cpp" else answer["prompt_tokens"]
    assert answer["context_tokens"] == prompt_tokens + 12 + 64
    assert answer["plan"]["can_load"]
    if engine == "stream":
        assert answer["plan"]["basis"] == "exact"
    else:
        differences = {row["part"]: row["difference_bytes"] for row in answer["reported"]}
        assert differences["weights"] == differences["kv cache"] == 0


def test_both_engines_give_the_same_greedy_answer(run_cli: RunCli) -> None:
    """The same file, the same prompt, the likeliest token each time."""
    argv = ("-p", "Once upon a time", "--raw", "--temp", 0, "--max-tokens", 8, "-q")
    options = ("-ctk", "f32", "-ctv", "f32")
    answers = {engine: run_cli(*argv, "--engine", engine, *options)[1] for engine in ENGINES}
    # for an incomplete character at the end the built-in engine prints a replacement character
    assert answers["llama.cpp"].rstrip() == answers["stream"].rstrip("\n\N{REPLACEMENT CHARACTER}")
    assert answers["stream"].strip()


@pytest.mark.parametrize("engine", ENGINES)
def test_same_seed_gives_the_same_answer(run_cli: RunCli, engine: str) -> None:
    argv = ("-p", "a", "--raw", "--max-tokens", 16, "--temp", 60, "--top-k", 0, "-q")
    sampling = ("--top-p", 1, "--min-p", 0)
    answers = [
        run_cli(*argv, *sampling, "--seed", seed, "--engine", engine)[1] for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize("engine", ENGINES)
def test_prompt_longer_than_the_context_needs_rolling(run_cli: RunCli, engine: str) -> None:
    argv = ("-p", "word " * 500, "--raw", "-c", 256, "--max-tokens", 4, "--engine", engine)
    code, out, err = run_cli(*argv)
    assert (code, out) == (3, "")
    assert "256" in err
    assert "--rolling" in err
    code, out, err = run_cli(*argv, "--rolling", "--sinks", 4)
    assert code == 0, err
    assert out


def test_context_of_a_long_prompt_is_sized_by_its_tokens(run_cli: RunCli) -> None:
    code, out, _ = run_cli("-p", "hello " * 600, "--raw", "--max-tokens", 2, "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["prompt_tokens"] < 3000
    assert answer["context_tokens"] == answer["prompt_tokens"] + 2 + 64


def test_prompt_from_stdin_with_a_system_message(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"What is this?")))
    code, _, err = run_cli("--engine", "stream", "-n", "3", "--system", "Be short.")
    assert code == 0, err
    assert "as estimated" in err


def test_context_that_does_not_fit_is_refused_with_suggestions(run_cli: RunCli) -> None:
    for engine in ENGINES:
        code, out, err = run_cli("-p", "Hello", "-c", 900_000_000, "--engine", engine)
        assert (code, out) == (3, "")
        assert "Does not fit" in err
        assert "To fit" in err
        assert "-c " in err  # the longest context that fits


def test_budget_too_small_or_for_llama_cpp_is_an_error(run_cli: RunCli, model: Path) -> None:
    code, _, err = run_cli("-p", "Hello", "--engine", "stream", "--budget", "20M")
    assert code == 3
    assert "Does not fit" in err
    code, _, err = run_cli("-p", "Hello", "--budget", "2G")
    assert code == 2
    assert "--engine stream" in err


def test_missing_engine_names_the_package_to_install(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgekit.engines.llamacpp.run.binding.has_xllamacpp", lambda: False)
    code, _, err = run_cli("-p", "Hello")
    assert code == 2
    assert "pip install 'edgekit-models[llama]'" in err


def test_model_that_only_the_engine_rejects_shows_its_last_output(
    run_cli: RunCli, tmp_path: Path
) -> None:
    file = write_chatting(tmp_path / "odd.gguf", keys={"tokenizer.ggml.pre": "no-such-pre"})
    code, _, err = run_cli("-p", "Hello", file=file)
    assert code == 5
    assert "no-such-pre" in err  # the last output of llama.cpp


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("-p", " "), 2, "the prompt is empty"),
        (("-p", "a", "--max-tokens", "0"), 2, "--max-tokens"),
        (("-p", "a", "--temp", "warm"), 2, "--temp"),
        (("-p", "a", "--temp", "-1"), 2, "temperature"),
        (("-p", "a", "--top-p", "nan"), 2, "top_p"),
        (("-f", "/no/such/file"), 4, "/no/such/file"),
        (("-p", "a", "--raw", "--system", "b"), 2, "--system"),
        (("-p", "a\udcff"), 2, "is not valid Unicode"),
        (("-p", "a", "--sinks", "4"), 2, "add --rolling"),
        (("-p", "a", "--engine", "vllm"), 2, "vllm is not installed: pip install vllm"),
        (("-p", "a", "--engine", "stream", "-ctk", "q4_0"), 2, "f32, f16, q8_0"),
    ],
)
def test_error_message_and_exit_code(
    run_cli: RunCli, argv: tuple[str, ...], code: int, message: str
) -> None:
    result, out, err = run_cli(*argv)
    assert (result, out) == (code, "")
    assert message in err


def test_embedding_model_is_refused_in_favour_of_edgekit_embed(
    run_cli: RunCli, tmp_path: Path
) -> None:
    file = write_model(tmp_path / "bert.gguf", "bert")
    for engine in ENGINES:
        code, _, err = run_cli("-p", "a", "--engine", engine, file=file)
        assert code == 2
        assert "edgekit embed" in err


def test_prompt_is_tokenised_before_it_is_refused(run_cli: RunCli, tmp_path: Path) -> None:
    """Sized by its 1,053 bytes, the context would be longer than the native 512 tokens."""
    file = write_chatting(tmp_path / "short.gguf", tied=False, context_tokens=512)
    argv = ("-p", "hello there, " * 81, "--raw", "-n", 1, "--engine", "stream", "--json")
    code, out, _ = run_cli(*argv, file=file)
    answer = json.loads(out)
    assert code == 0
    assert answer["context_tokens"] == min(answer["prompt_tokens"] + 1 + 64, 512)


def test_prompt_tokens_count_against_the_budget(model: Path, tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("word " * 2_000_000)
    command = [sys.executable, "-m", "edgekit", "run", str(model), "--engine", "stream"]
    command += ["--budget", "200M", "-f", str(long), "--rolling", "-c", "512", "-n", "1", "--raw"]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 3, done.stderr
    assert b"the prompt, cut into tokens, needs" in done.stderr


def test_run_refuses_a_header_without_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("run", "sample:gemma-3-27b", "-p", "a")) == 2
    assert "without weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jamba-1.5-mini", "no known repository has a GGUF of jamba-1.5-mini. Search https://"),
        ("gpt-oss-20b:IQ3_XXS", "no known repository has a GGUF of gpt-oss-20b at IQ3_XXS (known: mxfp4, "),
        ("nomic-embed-text-v1.5", "edgekit embed nomic-embed-text-v1.5 TEXT"),
    ],
)  # fmt: skip
def test_run_refuses_a_catalog_name_without_a_repository(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("run", name, "-p", "a", "--yes", "--offline")) == 2
    assert message in capsys.readouterr().err


def test_run_judges_a_catalog_name_before_any_download(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("run", "deepseek-v3:Q8_0", "-p", "a", "--yes", "--offline")) == 3
    err = capsys.readouterr().err
    assert "deepseek-v3 at Q8_0, from unsloth/DeepSeek-V3-GGUF" in err
    assert "Does not fit" in err


@pytest.mark.parametrize(
    ("flags", "mix"),
    [((), "Q6_K"), (("--max-use", "45%"), "Q4_K_M"), (("--reserve", "15G", "-c", "8k"), "Q5_K_M")],
)
def test_run_chooses_the_quantisation_that_check_chooses(
    flags: tuple[str, ...],
    mix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    card = requested_machine(devices=("RTX 4090",), ram="64G")
    monkeypatch.setattr("edgekit.app.run.detect", lambda: card)
    monkeypatch.setattr(
        LlamaCppProgram, "on_machine", lambda _, machine, __: machine
    )  # a GPU build
    assert main(("run", "qwen3-8b", "-p", "a", "--yes", "--offline", *flags)) == 4  # not downloaded
    assert f"qwen3-8b at {mix}, from " in capsys.readouterr().err
    main(
        ("check", "qwen3-8b", "--device", "RTX 4090", "--ram", "64G", "-np", "1", "--json", *flags)
    )
    assert json.loads(capsys.readouterr().out)["quantization"] == mix


@pytest.mark.parametrize("engine", sampled(ENGINES, each=2, turn=1))
def test_conversation_on_a_terminal(model: Path, engine: str) -> None:
    """Two turns with /reset between them, and /exit."""
    text = type_on_terminal(
        model, engine, b"Hello\n/reset\n\nAgain\n/exit\n", "--max-tokens", "4", "-c", "512"
    )
    assert text.count("> ") >= 4
    assert "history cleared" in text


def type_on_terminal(model: Path, engine: str, typed: bytes, *argv: str) -> str:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "edgekit", "run", str(model), "--engine", engine, *argv]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        os.write(controller, typed)
        text = b""
        with suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(controller, 4096):
                text += chunk
        assert process.wait(timeout=PATIENCE_S) == 0, text.decode(errors="replace")
    os.close(controller)
    return text.decode(errors="replace")


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_endless(tmp_path_factory.mktemp("run") / "endless.gguf")


def endless_command(model: Path, engine: str, *argv: str) -> list[str]:
    command = [sys.executable, "-m", "edgekit", "run", str(model), "--engine", engine, *argv]
    sampling = ["--temp", "60", "--top-k", "5", "--top-p", "1", "--min-p", "0"]
    return [*command, "-p", "go", "--raw", *sampling, "-c", "512", "--rolling", "-n", "1000000"]


def test_engine_killed_during_an_answer_is_an_error(endless: Path) -> None:
    with subprocess.Popen(
        endless_command(endless, "llama.cpp", "-q"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        [child] = psutil.Process(process.pid).children()
        child.kill()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 5, err
    assert b"SIGKILL" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize("engine", sampled(ENGINES, each=2))
def test_closed_pipe_is_not_an_error(endless: Path, engine: str) -> None:
    with subprocess.Popen(
        endless_command(endless, engine, "-q"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(3)
        process.stdout.close()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, b"")


def test_full_disk_is_an_error_and_closed_stdout_is_not(
    run_cli: RunCli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--engine", "stream", "-q", "-p", "go", "--raw", "-n", "2"]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" >&-', sys.executable, "-m", "edgekit", "run", model, *argv],
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (closed.returncode, closed.stderr) == (0, b"")
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        code, _, err = run_cli(*argv)
    assert code == 1
    assert "could not be written: No space left" in err


SIGNALS = ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129))


@pytest.mark.parametrize(
    ("engine", "number", "code"),
    sampled([(engine, *case) for engine in ENGINES for case in SIGNALS], each=2),
)
def test_signal_during_an_answer_ends_the_engine_and_run(
    endless: Path, engine: str, number: signal.Signals, code: int
) -> None:
    with subprocess.Popen(
        endless_command(endless, engine),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, err
    assert b"Traceback" not in err
    assert [child for child in started if child.is_running()] == []
