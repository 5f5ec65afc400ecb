"""`edgekit index`: list, show, add, update and remove."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.documented import documented
from tests.header_files import ARCHITECTURE, FLOAT32, UINT32, entry, gguf, key

from edgekit.cli import main
from edgekit.index.names import find_entry
from edgekit.index.types import ModelPurpose
from edgekit.plan.recommend import entry_quality


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def run_index(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["index", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def write_small_model(path: Path, *, context: int = 512, more: tuple[bytes, ...] = ()) -> Path:
    """A Llama with 2 layers of width 64, 4 heads and 1,000 tokens: the least that its loader accepts."""
    numbers = {
        "embedding_length": 64, "attention.head_count": 4, "context_length": context, "feed_forward_length": 128,
        "vocab_size": 1000,
    }  # fmt: skip
    keys = [*ARCHITECTURE, *(key(f"llama.{name}", UINT32, n) for name, n in numbers.items())]
    keys.append(key("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5))
    shapes = {"token_embd.weight": (64, 1000), "output_norm.weight": (64,)}
    for i in range(2):
        shapes |= {
            f"blk.{i}.{name}.weight": (64, 64)
            for name in ("attn_q", "attn_k", "attn_v", "attn_output")
        }
        shapes |= {f"blk.{i}.{name}.weight": (64,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{i}.ffn_{name}.weight": (64, 128) for name in ("gate", "up")}
        shapes |= {f"blk.{i}.ffn_down.weight": (128, 64)}
    rows, offset = [], 0
    for name, shape in shapes.items():
        rows.append(entry(name, shape, 0, offset))
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        offset += -(-size // 32) * 32
    path.write_bytes(gguf((*keys, *more), rows, data_bytes=offset))
    return path


def test_list_prints_the_most_used_models(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_index(capsys, "list")
    assert (code, err) == (0, "")
    first, _, head, *rows, _, note = out.splitlines()
    assert re.fullmatch(r"the 40 most used of \d,\d{3} models", first)
    assert head.split()[:4] == ["model", "parameters", "4-bit", "context"]
    assert len(rows) == 40
    assert any(row.startswith("qwen3-8b ") for row in rows)
    assert "--all" in note


def test_list_all_prints_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    first, _, _, *rows = run_index(capsys, "list", "--all")[1].splitlines()
    shown, total_text = first.removesuffix(" models").split(" of ")
    assert shown == total_text
    total = int(total_text.replace(",", ""))
    assert len(rows) == total
    answer = json.loads(run_index(capsys, "list", "--json")[1])
    assert len(answer["models"]) == total


def test_list_limit(capsys: pytest.CaptureFixture[str]) -> None:
    every = json.loads(run_index(capsys, "list", "--family", "qwen3", "--json")[1])["models"]
    three = json.loads(run_index(capsys, "list", "--family", "qwen3", "--json", "--limit", "3")[1])
    assert three["models"] == every[:3]
    assert run_index(capsys, "list", "--limit", "0")[0] == 2


def test_catalog_is_an_alias(capsys: pytest.CaptureFixture[str]) -> None:
    expected = run_index(capsys, "list", "--family", "gemma")
    assert main(["catalog", "list", "--family", "gemma"]) == 0
    assert capsys.readouterr().out == expected[1]


@pytest.mark.parametrize(
    ("argv", "key", "is_right"),
    [
        (("--publisher", "GOOGLE"), "repository", lambda name: name.startswith("google/")),
        (("--licence", "apache-2.0"), "licence", lambda name: name == "apache-2.0"),
        (("--license", "mit"), "licence", lambda name: name.startswith("mit")),
        (
            ("--text", "Qwen coder"),
            "kinds",  # "coder" in the name makes it a model for code
            lambda kinds: "code" in kinds,
        ),
        (("--exact",), "geometry", lambda basis: basis == "exact"),
    ],
)
def test_list_filters(
    argv: tuple[str, ...],
    key: str,
    is_right: Callable[[str], bool],
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = json.loads(run_index(capsys, "list", "--json", *argv)[1])["models"]
    assert len(models) > 5
    assert all(is_right(model[key]) for model in models if model[key] is not None)


@pytest.mark.parametrize(
    ("argv", "included", "excluded"),
    [
        (("--kind", "embedding"), "nomic-embed-text-v1.5", "qwen3-8b"),
        (("--family", "QWEN3"), "qwen3-8b", "llama-2-7b"),
        (("--packaged",), "qwen3-8b", "small"),
        (("--user",), "small", "qwen3-8b"),
    ],
)
def test_list_is_filtered_by_flags(
    argv: tuple[str, ...],
    included: str,
    excluded: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_index(capsys, "add", str(write_small_model(tmp_path / "small.gguf")))
    answer = json.loads(run_index(capsys, "list", "--json", *argv)[1])
    names = {model["id"] for model in answer["models"]}
    assert included in names
    assert excluded not in names


def test_tables_fit_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for argv in (("list",), ("show", "qwen3-8b"), ("show", "llava-1.5-7b")):
        assert max(map(len, run_index(capsys, *argv)[1].splitlines())) <= 40


def test_show_prints_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_index(capsys, "show", "Qwen/Qwen3-30B-A3B")
    assert (code, err) == (0, "")
    assert out.startswith("qwen3-30b-a3b: 30.53 B parameters, 3.35 B active, 40,960 tokens")
    assert "publisher Alibaba (Qwen), licence apache-2.0" in " ".join(out.split())
    assert "geometry exact: " in out
    assert re.search(r"Q4_K_M +17\.28 GiB +18,550,716,416 bytes +exact", out)
    assert "Sources  " in out


def test_show_json(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run_index(capsys, "show", "qwen3-8b", "--json")[1])
    assert answer["sizes"][0] == {
        "mix": "F16", "tensor_bytes": find_entry("qwen3-8b").sizes[0].tensor_bytes, "basis": "exact",
    }  # fmt: skip
    assert answer["sources"]["parameters"]["basis"] == "exact"
    assert answer["forms"] == ["gguf", "config"]
    assert answer["keys"]["qwen3.block_count"] == 36
    assert answer["licence"] == "apache-2.0"
    assert answer["geometry"] == "exact"
    assert {"spelling": "qwen3:8b", "scheme": "ollama"} in answer["names"]
    assert {row["task"] for row in answer["quality"]} == set(answer["kinds"])
    assert all(row["low"] < row["value"] < row["high"] for row in answer["quality"])
    assert answer["sources"]["licence"]["licence"]


@pytest.mark.parametrize("name", ["chatglm3-6b", "qwen3-8b"])
def test_show_json_has_the_quality_that_recommend_goes_by(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The release of chatglm3-6b is unknown; its files say when it was the earliest."""
    entry = find_entry(name)
    for row in json.loads(run_index(capsys, "show", name, "--json")[1])["quality"]:
        assert row["value"] == entry_quality(entry, ModelPurpose(row["task"])).value


def test_show_json_keys_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run_index(capsys, "show", "qwen3-8b", "--json")[1])
    assert answer.keys() <= documented("index show")


def test_model_is_added_updated_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_small_model(tmp_path / "small-Q4_0.gguf")
    # 1000 x 64 + 2 x (4 x 64 x 64 + 3 x 64 x 128 + 2 x 64) + 64
    parameters = 64_000 + 2 * (16_384 + 24_576 + 128) + 64
    assert run_index(capsys, "add", str(path)) == (
        0, f"added: small: {parameters / 1000:.2f} K parameters, 512 tokens, for chat\n", "",
    )  # fmt: skip
    entry_added = find_entry("small")
    assert (entry_added.parameters, entry_added.reference) == (parameters, str(path))
    assert entry_added.sizes[0].tensor_bytes == 4 * parameters
    assert run_index(capsys, "update") == (0, "small: unchanged\n", "")
    write_small_model(path, context=1024)
    code, out, _ = run_index(capsys, "update", "small")
    assert (code, out) == (0, "small: changed\n  native context: 512 -> 1,024\n  keys: changed\n")
    assert find_entry("small").native_context == 1024
    assert run_index(capsys, "remove", "SMALL") == (0, "removed: small\n", "")
    assert run_index(capsys, "remove", "small")[0] == 4


def test_model_added_by_relative_path_is_updated_from_another_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_model(tmp_path / "small.gguf")
    monkeypatch.chdir(tmp_path)
    run_index(capsys, "add", "small.gguf")
    monkeypatch.chdir("/")
    assert run_index(capsys, "update")[:2] == (0, "small: unchanged\n")


def test_update_keeps_a_model_whose_file_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_small_model(tmp_path / "small.gguf")
    write_small_model(tmp_path / "other.gguf")
    run_index(capsys, "add", str(path), str(tmp_path / "other.gguf"))
    path.write_bytes(b"GGUF and then nothing")
    code, out, _ = run_index(capsys, "update")
    assert code == 5
    first, second, *_ = out.splitlines()
    assert first == "other: unchanged"
    assert second.startswith("small: not updated:")
    assert find_entry("small").parameters is not None
    answer = json.loads(run_index(capsys, "update", "--json")[1])
    assert [item["id"] for item in answer["read"]] == ["other"]
    assert answer["failed"][0]["name"] == "small"


def test_add_continues_after_an_unreadable_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_small_model(tmp_path / "small.gguf")
    code, out, _ = run_index(capsys, "add", "./nothing.gguf", str(path))
    assert code == 4
    assert out.splitlines()[0].startswith("added: small: ")
    assert "not added: ./nothing.gguf: no such file or folder" in out


def test_add_refuses_a_second_model_of_the_same_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_small_model(tmp_path / folder / "small.gguf")
    assert run_index(capsys, "add", str(tmp_path / "a/small.gguf"))[0] == 0
    assert run_index(capsys, "add", str(tmp_path / "a/small.gguf"))[1].startswith(
        "read again: small: "
    )
    code, out, err = run_index(capsys, "add", str(tmp_path / "b/small.gguf"))
    assert (code, out) == (2, "")
    assert "use --id to give this one another name" in err
    assert run_index(capsys, "add", str(tmp_path / "b/small.gguf"), "--id", "second")[0] == 0
    assert find_entry("second").parameters == find_entry("small").parameters


def test_add_under_a_built_in_name_says_that_it_replaces_the_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_small_model(tmp_path / "small.gguf")
    _, out, _ = run_index(capsys, "add", str(path), "--id", "qwen3-8b")
    assert "replaces the built-in entry" in out


def test_add_refuses_a_model_with_an_infinite_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    infinite = key("llama.rope.freq_base", FLOAT32, float("inf"))
    path = write_small_model(tmp_path / "small.gguf", more=(infinite,))
    code, out, err = run_index(capsys, "add", str(path))
    assert (code, out) == (5, "")
    assert "is not a number" in err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (
            ("show", "no-such-llm"),
            4,
            "'no-such-llm' is not in the index (edgekit index list shows all models)",
        ),
        (("remove", "nothing"), 4, "you have not added a model named 'nothing'"),
        (("remove", "Qwen3-8B"), 2, "is built in: only models that you added can be removed"),
        (("update", "qwen3-8b"), 4, "'qwen3-8b' is not in the index"),
        (("add", "./no.gguf"), 4, "no such file or folder"),
        (("add", "a", "b", "--id", "c"), 2, "--id works with one model only"),
        (("add", "a", "--id", "c/d"), 2, "an id may contain letters"),
    ],
)
def test_error_is_one_line_and_an_exit_code(
    argv: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result, out, err = run_index(capsys, *argv)
    assert (result, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_damaged_list_of_added_models_is_a_note(
    data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_folder.mkdir()
    (data_folder / "catalog.db").write_text("not a database" * 100)
    code, out, err = run_index(capsys, "list")
    assert (code, err) == (0, "")
    assert "the models you added are left out" in " ".join(out.split())
    assert run_index(capsys, "show", "qwen3-8b")[0] == 0
    assert run_index(capsys, "add", "sample:gemma-3-27b")[0] == 5


@pytest.mark.parametrize(
    ("flag", "argv"),
    [
        ("--signers", ("index", "update", "./x.sqlite", "--signers")),
        ("--out", ("index", "build", "--out")),
        ("the plot", ("plan", "qwen3-0.6b", "--device", "RTX 4090", "--plot")),
    ],
)
@pytest.mark.parametrize("path", ["~no-such-user/x.svg", ""])
def test_path_of_a_flag_that_cannot_be_one_is_an_error(
    flag: str, argv: tuple[str, ...], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = main([*argv, path]), *capsys.readouterr()
    assert (code, out) == (2, "")
    ends = {"": "takes a path (got '')", "~no-such-user/x.svg": "no home folder '~no-such-user'"}
    assert err.startswith(f"edgekit: {flag}")
    assert err.rstrip().endswith(ends[path])


def test_update_without_added_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_index(capsys, "update") == (0, "you have not added any models yet\n", "")


@pytest.mark.parametrize("action", ["", "list", "show", "add", "remove", "update", "build"])
def test_help_prints_the_usage_of_each_action(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["index", *filter(None, [action]), "--help"])
    assert caught.value.code == 0
    assert f"usage: edgekit index{f' {action}' if action else ''} " in capsys.readouterr().out


def test_remove_takes_the_exact_id_in_any_case_and_only_suggests_similar_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_index(capsys, "add", "sample:gemma-3-27b", "--id", "my:gemma")
    code, out, err = run_index(capsys, "remove", "my-gemma")
    assert (code, out) == (4, "")
    assert "you have not added a model named 'my-gemma'. Did you mean: my:gemma?" in err
    assert find_entry("my:gemma").is_users
    assert run_index(capsys, "remove", "My:Gemma") == (0, "removed: my:gemma\n", "")
