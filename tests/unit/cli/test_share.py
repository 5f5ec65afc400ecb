"""`edgekit share`: the files, what they contain and leave out, and exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree as ET

import pytest
from tests.documented import documented
from tests.unit.report.verdicts import card, mac, machine
from tests.web.model_files import write_model

from edgekit.app.check import Check, check
from edgekit.cli import main
from edgekit.cli.share import described, write_file
from edgekit.errors import OutputError, UsageError
from edgekit.machine.types import HostMemory
from edgekit.report.check import headline
from edgekit.request import Session
from edgekit.sources.types import Reach
from edgekit.units import GIB
from edgekit.web.requests import CHECK

MODEL = "sample:gemma-3-27b"
CARD = ("--device", "RTX 4090", "--ram", "64G")
FAILS = ("--device", "RTX 4070")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def share(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["share", *words])
    out, err = capsys.readouterr()
    return code, out, err


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_share_writes_one_file_named_after_model_and_machine(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    code, out, _ = share(capsys, "gemma-3-27b", *CARD, "--offline")
    [file] = folder.iterdir()
    assert (code, file.name) == (0, "gemma-3-27b-rtx-4090.html")
    assert out.splitlines()[-1] == "wrote gemma-3-27b-rtx-4090.html"
    main(["check", "gemma-3-27b", *CARD, "--offline", "--quiet"])
    sentence = capsys.readouterr().out.strip()
    assert out.splitlines()[0] == sentence
    page = file.read_text(encoding="utf-8")
    assert sentence in unescape(page)
    assert "llama-server -hf" in page


def test_page_needs_nothing_but_itself(capsys: pytest.CaptureFixture[str]) -> None:
    _, page, _ = share(capsys, MODEL, *CARD, "-o", "-")
    tags = Tags(page).found
    assert not {"script", "link", "iframe", "object", "form"} & {tag for tag, _ in tags}
    for _, attributes in tags:
        for name in ("src", "srcset", "href"):
            assert (attributes.get(name) or "data:image/svg+xml").startswith("data:image/svg+xml")
    properties = {attributes.get("property") for tag, attributes in tags if tag == "meta"}
    assert properties >= {"og:title", "og:description", "og:type", "og:site_name"}
    assert "prefers-color-scheme: dark" in page
    assert "default-src 'none'" in page


def test_page_says_what_would_change_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    _, page, _ = share(capsys, MODEL, *FAILS, "-o", "-")
    assert "To make it fit" in page
    assert "2x RTX 4070" in page
    assert "Run it" not in page


def test_model_that_does_not_fit_is_shared_with_exit_code_0(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    code, out, _ = share(capsys, MODEL, *FAILS, "--json", "--badge", "b.svg", "--picture", "p.svg")
    answer = json.loads(out)
    assert (code, answer["status"], answer["can_load"]) == (0, "failed", False)
    assert answer["files"] == {
        "html": "gemma-3-27b-rtx-4070.html",
        "picture": "p.svg",
        "badge": "b.svg",
    }
    assert {file.name for file in folder.iterdir()} == set(answer["files"].values())
    for name in ("b.svg", "p.svg"):
        ET.parse(folder / name)
    assert answer.keys() | answer["files"].keys() <= documented("share", "check")
    assert documented("share") <= answer.keys() | answer["files"].keys()


def test_theme_is_that_of_the_picture(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    share(capsys, MODEL, *CARD, "--picture", "dark.svg", "--theme", "dark")
    assert "#0e151e" in (folder / "dark.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "question",
    [
        CARD,
        ("--device", "RTX 4060", "-c", "8k", "-ctk", "q8_0", "-ctv", "q8_0"),
        ("--vram", "24G,24G", "--ram", "64G", "--users", "2", "--no-mmap"),
        (
            "--ram",
            "32G DDR5-6000",
            "--cpu",
            "Ryzen 7 7700",
            "--max-use",
            "80%",
            "--engine",
            "llama.cpp",
        ),
    ],
)
def test_command_and_path_ask_the_same(
    capsys: pytest.CaptureFixture[str], question: tuple[str, ...]
) -> None:
    _, out, _ = share(capsys, MODEL, *question, "--json")
    answer = json.loads(out)
    edgekit, *words = shlex.split(answer["command"])
    assert edgekit == "edgekit"
    main([*words, "--json"])
    assert json.loads(capsys.readouterr().out)["headline"] == answer["headline"]
    query = parse_qs(urlsplit(answer["path"]).query)
    reference = query.pop("ref")[0]
    fields = {key: texts if key == "device" else texts[0] for key, texts in query.items()}
    request = CHECK.model_validate({"model": reference, **fields}).request()
    result = check(reference, request, Session(reach=Reach(network=False)))[0]
    assert isinstance(result, Check)
    assert headline(result.result) == answer["headline"]


@pytest.mark.parametrize("spelling", ["absolute", "relative", "dotted", "folder"])
def test_page_of_a_local_file_has_no_folders(
    capsys: pytest.CaptureFixture[str], folder: Path, spelling: str
) -> None:
    secret = folder / "my secret"
    secret.mkdir()
    path = write_model(secret, "llama-3.1-8b", "Q4_K_M")
    references = {
        "absolute": str(path),
        "relative": str(path.relative_to(folder)),
        "dotted": f".{os.sep}{path.relative_to(folder)}",
        "folder": str(secret),
    }
    code, page, _ = share(capsys, references[spelling], *CARD, "-o", "-")
    assert code == 0
    text = unescape(page)
    assert path.name in text
    leaks = [str(folder), str(Path.home()) + os.sep, f"my secret{os.sep}"]
    assert not [leak for leak in leaks if leak in text]


def test_this_machine_is_described_by_names(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = share(capsys, "qwen3-0.6b", "--offline", "--json")
    answer = json.loads(out)
    assert re.search(r"--(device|vram|ram) ", answer["command"])
    assert described(machine(card("RTX 3090", 24), card("RTX 3090", 24))) == {
        "device": ["2x RTX 3090"],
        "ram": "64G",
    }
    assert described(mac(36)) == {"device": ["M3 Max 36GB"]}
    assert described(machine(card("Unknown GPU", 24))) == {"vram": "24G", "ram": "64G"}
    small = machine(host=HostMemory(total_bytes=31 * GIB, free_bytes=GIB))
    assert described(small) == {"ram": "31G"}


# -- files ----------------------------------------------------------------------------------------


def test_existing_file_is_kept_without_force(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "a.html").write_text("mine", encoding="utf-8")
    code, _, err = share(capsys, MODEL, *CARD, "-o", "a.html")
    assert code == 2
    assert "--force" in err
    assert (folder / "a.html").read_text(encoding="utf-8") == "mine"
    code, _, _ = share(capsys, MODEL, *CARD, "-o", "a.html", "--force")
    assert code == 0
    assert "<!DOCTYPE html>" in (folder / "a.html").read_text(encoding="utf-8")
    assert [file.name for file in folder.iterdir()] == ["a.html"]


def test_write_file_never_replaces_a_file_that_appears_meanwhile(folder: Path) -> None:
    (folder / "x").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="exists"):
        write_file(folder / "x", "new", force=False)
    assert (folder / "x").read_text(encoding="utf-8") == "mine"
    assert [file.name for file in folder.iterdir()] == ["x"]


def test_write_file_to_a_missing_folder_is_an_output_error(folder: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_file(folder / "none" / "x", "new", force=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "all"), "one engine"),
        (("--theme", "dark"), "--picture"),
        (("--picture", "p.svg", "--theme", "pink"), "light, dark"),
        (("-o", "-", "--json"), "standard output"),
        (("-o", "x", "--badge", "x"), "different files"),
        (("-o", "x", "--badge", "../{here}/x", "--force"), "different files"),
        (("-o", "x.html", "--badge", "X.html"), "different files"),
        (("-o", "."), "is a folder"),
        (("-o", ""), "takes a path"),
        pytest.param(
            ("-o", os.devnull, "--force"),
            "not a regular file",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="no device files"),
        ),
    ],
)
def test_wrong_usage_writes_nothing(
    capsys: pytest.CaptureFixture[str], folder: Path, words: tuple[str, ...], message: str
) -> None:
    words = tuple(word.replace("{here}", folder.name) for word in words)
    code, _, err = share(capsys, MODEL, *CARD, *words)
    assert code == 2
    assert message in err
    assert not list(folder.iterdir())


def test_unknown_model_writes_nothing(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, _, _ = share(capsys, "./no.gguf", *CARD)
    assert code == 4
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["x" * 300, "nodir/x.svg", "file/x.svg"])
@pytest.mark.parametrize("flag", ["-o", "--badge", "--picture"])
def test_place_that_cannot_be_written_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], folder: Path, flag: str, name: str
) -> None:
    (folder / "file").write_text("mine", encoding="utf-8")
    others = () if flag == "-o" else ("-o", "w.html")
    code, out, err = share(capsys, MODEL, *CARD, *others, flag, name)
    assert code != 0
    assert (out, err.count("cannot be written")) == ("", 1)
    assert [file.name for file in folder.iterdir()] == ["file"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may enter")
def test_folder_that_may_not_be_entered_is_refused(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "closed").mkdir(mode=0)
    _, _, err = share(capsys, MODEL, *CARD, "-o", "closed/x.html")
    assert "closed/x.html cannot be written: Permission denied" in err


def test_command_for_a_file_whose_name_looks_like_a_flag(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    write_model(folder, "llama-3.1-8b", "Q4_K_M").rename(folder / "--help.gguf")
    _, out, _ = share(capsys, "./--help.gguf", *CARD, "--json")
    assert shlex.split(json.loads(out)["command"])[:3] == ["edgekit", "check", "./--help.gguf"]


def test_title_of_the_engine_is_in_the_picture(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    share(capsys, "qwen3-8b", *CARD, "--engine", "vllm", "--picture", "p.svg")
    picture = (folder / "p.svg").read_text(encoding="utf-8")
    assert "vLLM 0." in picture
    assert "vllm 0." not in picture
