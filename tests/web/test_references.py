"""What a request may name: every way out of the folders that were given, and what is let through."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.web.serving import LOCAL, ask, events, start
from tests.web.test_api import write_model

from edgekit.app.catalog import entry_of
from edgekit.app.open import open_named
from edgekit.catalog.store import save_entry
from edgekit.engines import every_engine
from edgekit.engines.llamacpp.model_source import typed_gguf_words
from edgekit.engines.protocol import Companions
from edgekit.errors import (
    EdgekitError,
    NotAllowedError,
    NotFoundError,
    RangeNotSupportedError,
    UsageError,
)
from edgekit.model import open_model
from edgekit.request import Request, Session
from edgekit.sources import path_of
from edgekit.sources.download import download_model
from edgekit.sources.types import Reach
from edgekit.web.models import OpenedModels
from edgekit.web.references import (
    allowed_reference,
    allowed_request,
    files_inside,
    may_need_network,
    without_folders,
)
from edgekit.web.types import CallWatch, WebSettings

NOWHERE = WebSettings()
TOKEN = "correct-horse-battery"
OFFLINE = WebSettings(network=False, cache=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is given, beside one that is not."""
    write_model(tmp_path / "given" / "org" / "name")
    write_model(tmp_path / "other")
    return (tmp_path / "given").resolve()


# --- names

NAMES = (
    "qwen3-8b",
    "catalog:qwen3-8b",
    "sample:gemma-3-27b",
    "org/name",
    "org/name:Q4_K_M",
    "org/name@refs/pr/1:Q8_0",
    "org/name/folder/model.gguf",
    "org/name:model.gguf",
    "hf.co/org/name:Q4_K_M",
    "hf://org/name",
    "https://huggingface.co/org/name/blob/main/model.gguf",
    "http://example.org/model.gguf?token=x",
    "llama3.2:1b",
    "ollama:me/mine:latest",
    "registry.ollama.ai/library/llama3.2:1b",
)


@pytest.mark.parametrize("name", NAMES)
def test_names_and_addresses_are_let_through(name: str) -> None:
    assert allowed_reference(f"  {name} ", NOWHERE) == name
    assert path_of(name) is None


# --- paths

ESCAPES = (
    "/etc/passwd", "/", "//etc/passwd", "/proc/self/environ", "/dev/stdin", "/dev/zero", "/dev/fd/0",
    "..", "../", "../model.gguf", "../../etc/passwd", "org/../../etc/passwd", "org/name/../../../x.gguf",
    "./../x.gguf", "org/..", "a/..\\b", "~", "~/model.gguf", "~root/model.gguf", "~nobody/x", "C:\\models\\x.gguf",
    "c:/models/x.gguf", "\\\\host\\share\\x.gguf", "//host/share/x.gguf", "\\??\\C:\\x", "org\\name",
    "file:///etc/passwd", "FILE:///etc/passwd", "file://host/share", "ftp://host/x.gguf", "gopher://x/1", "data://x",
    "jar:file:///x!/y", "sample://gemma-3-27b", "org/name@file:///etc/passwd", "smb://host/share/x.gguf",
)  # fmt: skip


def with_file(flag: str, name: str) -> Request:
    """A request that loads a file next to the model."""
    return Request.from_query({flag: name}, frozenset({flag}))


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("given", [False, True])
def test_no_way_out(name: str, folder: Path, *, given: bool) -> None:
    settings = WebSettings(models_dirs=(folder,) if given else ())
    with pytest.raises(NotAllowedError):
        allowed_reference(name, settings)
    for flag in ("mmproj", "lora", "draft_model"):
        with pytest.raises(NotAllowedError):
            allowed_request(with_file(flag, name), settings)


@pytest.mark.parametrize("name", ["", " ", "\0", "model\0.gguf", "a\nb", "x" * 9000, "\ud800"])
def test_what_is_no_name(name: str, folder: Path) -> None:
    with pytest.raises(UsageError):
        allowed_reference(name, WebSettings(models_dirs=(folder,)))


@pytest.mark.parametrize(
    "name", ["model.gguf", "./model.gguf", ".", "folder/model.safetensors", "config.json"]
)
def test_a_path_where_no_folder_was_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is there or not: nobody learns which."""
    monkeypatch.chdir(tmp_path)
    messages = []
    for _ in range(2):
        with pytest.raises(NotAllowedError, match="--models-dir") as refused:
            allowed_reference(name, NOWHERE)
        messages.append(str(refused.value))
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(b"GGUF")
    assert messages[0] == messages[1]


def test_inside(folder: Path) -> None:
    settings = WebSettings(models_dirs=(folder,))
    path = next(folder.rglob("*.gguf"))
    for name in (
        "org/name",
        f"org/name/{path.name}",
        f"./org/name/{path.name}",
        "org//name",
        str(path),
    ):
        assert allowed_reference(name, settings) in {str(path), str(path.parent)}, name
    assert allowed_reference(".", settings) == str(folder)
    assert OpenedModels(settings).named("org/name", CallWatch()).found is not None


@pytest.mark.parametrize("name", ["model.gguf", "./org/other.gguf", "org/config.json"])
def test_not_there(name: str, folder: Path) -> None:
    for text in (name, str(folder / name)):
        with pytest.raises(NotFoundError):
            allowed_reference(text, WebSettings(models_dirs=(folder,)))


def test_beside(folder: Path) -> None:
    """What is there and what is not are told in the same words."""
    settings = WebSettings(models_dirs=(folder,))
    other = folder.parent / "other"
    for path in (other, *other.iterdir(), other / "nothing.gguf", Path(f"{folder}-more/x.gguf")):
        with pytest.raises(NotAllowedError, match="outside the --models-dir folders"):
            allowed_reference(str(path), settings)


def test_a_folder_that_is_named_by_a_link(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    settings = WebSettings(models_dirs=(link,))
    assert allowed_reference("org/name", settings) == str(folder / "org" / "name")
    assert allowed_reference(str(link / "org" / "name"), settings) == str(folder / "org" / "name")
    assert allowed_reference(str(folder / "org" / "name"), settings) == str(folder / "org" / "name")


def _to_a_file(folder: Path, other: Path) -> str:
    (folder / "out.gguf").symlink_to(next(other.iterdir()))
    return "out.gguf"


def _to_a_folder(folder: Path, other: Path) -> str:
    (folder / "out").symlink_to(other)
    return f"out/{next(other.iterdir()).name}"


def _up(folder: Path, other: Path) -> str:
    (folder / "up").symlink_to("..")
    return f"up/other/{next(other.iterdir()).name}"


def _by_a_chain(folder: Path, other: Path) -> str:
    (folder / "one.gguf").symlink_to("two.gguf")
    (folder / "two.gguf").symlink_to(next(other.iterdir()))
    return "one.gguf"


def _to_a_device(folder: Path, _: Path) -> str:
    (folder / "zero.gguf").symlink_to("/dev/zero")
    return "zero.gguf"


def _a_pipe(folder: Path, _: Path) -> str:
    os.mkfifo(folder / "pipe.gguf")
    return "pipe.gguf"


@pytest.mark.parametrize(
    "placement", [_to_a_file, _to_a_folder, _up, _by_a_chain, _to_a_device, _a_pipe]
)
def test_links_and_devices_inside(placement: Callable[[Path, Path], str], folder: Path) -> None:
    name = placement(folder, folder.parent / "other")
    with pytest.raises(NotAllowedError):
        allowed_reference(name, WebSettings(models_dirs=(folder,)))


def test_links_that_lead_nowhere_or_to_themselves(folder: Path) -> None:
    (folder / "gone.gguf").symlink_to("nothing.gguf")
    (folder / "round.gguf").symlink_to("round.gguf")
    for name in ("gone.gguf", "round.gguf"):
        with pytest.raises(NotFoundError):
            allowed_reference(name, WebSettings(models_dirs=(folder,)))


def test_a_folder_with_a_link_in_it_that_leads_out(folder: Path) -> None:
    """The folder is inside, and what it means is not: nothing of it is read."""
    inner = folder / "inner"
    inner.mkdir()
    (inner / "model.gguf").symlink_to(next((folder.parent / "other").iterdir()))
    settings = WebSettings(models_dirs=(folder,))
    result = allowed_reference("inner", settings)
    with pytest.raises(NotAllowedError, match="outside the --models-dir"):
        files_inside(result, settings)
    with pytest.raises(NotAllowedError):
        OpenedModels(settings).named("inner", CallWatch())
    with pytest.raises(NotAllowedError):
        allowed_request(with_file("lora", "org/name,inner"), settings)


def test_what_a_link_leads_out_to_is_not_told(folder: Path) -> None:
    write_model(folder / "more", "qwen3-30b-a3b")
    (folder / "linked").symlink_to(folder.parent / "other")
    settings = WebSettings(models_dirs=(folder,))
    for name in (".", str(folder)):
        with pytest.raises(NotFoundError, match="2 GGUF files of different models") as refused:
            OpenedModels(settings).named(name, CallWatch())
        assert len(refused.value.candidates) == 2
        assert "linked" not in str(refused.value)


def test_a_refusal_names_what_was_typed(folder: Path) -> None:
    (folder / "out.gguf").symlink_to(next((folder.parent / "other").iterdir()))
    with pytest.raises(NotAllowedError, match=r"'out\.gguf' is a link to a place outside"):
        allowed_reference("out.gguf", WebSettings(models_dirs=(folder,)))
    with pytest.raises(NotAllowedError, match=r"'\.' is a path"):
        allowed_reference(".", NOWHERE)


def test_links_inside_of_a_folder_are_followed(folder: Path) -> None:
    """As the hub's cache has them."""
    path = next(folder.rglob("*.gguf"))
    inner = folder / "inner"
    inner.mkdir()
    (inner / "model.gguf").symlink_to(path)
    settings = WebSettings(models_dirs=(folder,))
    assert allowed_reference("inner/model.gguf", settings) == str(path)
    assert OpenedModels(settings).named("inner", CallWatch()).found is not None


# --- names that are also something here


HERE = ("org/name:Q4_K_M", "org/name@main/a/b.gguf", "qwen3-8b", "mine", "mine:1b", "Qwen/Qwen3-8B")


@pytest.mark.parametrize("name", [*HERE, "org/name", "org/nothing", "Qwen/nothing"])
def test_nothing_depends_on_where_the_server_was_started(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is never a path there, and nobody learns which names are."""
    monkeypatch.chdir(tmp_path)
    before = outcome(name)
    write_model(tmp_path / "org" / "name")
    for here in HERE:
        write_model(tmp_path / here)
    assert allowed_reference(name, NOWHERE) == name
    assert outcome(name) == before
    assert str(tmp_path) not in str(before)


def outcome(name: str) -> object:
    """What a server without a network says to it."""
    try:
        named = OpenedModels(OFFLINE).named(name, CallWatch())
    except EdgekitError as error:
        return type(error), str(error)
    assert named.found is None  # nothing was read
    assert named.entry is not None
    return named.name, named.entry.id, named.notes


def test_commands_name_what_was_found_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert typed_gguf_words("org/name", is_name=True) == ["-hf", "org/name"]
    assert typed_gguf_words("org/name") == ["-m", "org/name"]  # the command line's


def test_a_given_folder_comes_before_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert allowed_reference("org/name", WebSettings(models_dirs=(folder,))) == str(
        folder / "org" / "name"
    )


# --- what the user added to the catalog


def add(reference: str, name: str) -> None:
    save_entry(entry_of(open_model(reference), reference, name=name))


def test_own_entries_are_opened_only_from_inside(folder: Path) -> None:
    inside, outside = next(folder.rglob("*.gguf")), next((folder.parent / "other").iterdir())
    add(str(inside), "mine")
    add(str(outside), "hidden")
    add("sample:gemma-3-27b", "sampled")
    settings = WebSettings(models_dirs=(folder,), network=False)
    for name in ("mine", "catalog:mine", "catalog:sampled", "sampled"):
        result = OpenedModels(settings).named(name, CallWatch())
        assert result.found is not None, name
    for name in ("hidden", "catalog:hidden", "HIDDEN", "hidden:Q8_0", "hidden Q8_0", "hid den"):
        with pytest.raises(NotAllowedError, match="hidden was added to the catalog"):
            allowed_reference(name, settings)
        with pytest.raises(NotAllowedError):
            allowed_reference(name, NOWHERE)


def test_an_own_entry_whose_file_is_gone_is_known_from_the_catalog(folder: Path) -> None:
    path = next(folder.rglob("*.gguf"))
    add(str(path), "mine")
    path.unlink()
    result = OpenedModels(WebSettings(models_dirs=(folder,), network=False)).named(
        "mine", CallWatch()
    )
    assert result.found is None
    assert "is gone" in result.notes[0]
    with pytest.raises(NotAllowedError):
        allowed_reference("mine", NOWHERE)


def test_where_an_own_entry_came_from_is_told_only_of_what_may_be_opened(folder: Path) -> None:
    inside, outside = next(folder.rglob("*.gguf")), next((folder.parent / "other").iterdir())
    add(str(inside), "mine")
    add(str(outside), "hidden")
    add("sample:gemma-3-27b", "sampled")
    with start(replace(LOCAL, models_dirs=(folder,))) as address:
        listed = ask(address, "/api/v1/catalog")
        shown = {
            name: ask(address, f"/api/v1/catalog/{name}").json() for name in ("mine", "hidden")
        }
    references = {model["id"]: model["reference"] for model in listed.json()["models"]}
    assert [references[name] for name in ("mine", "hidden", "sampled")] == [
        str(inside),
        None,
        "sample:gemma-3-27b",
    ]
    assert str(outside) not in listed.body.decode()
    assert shown["mine"]["keys"]
    assert (shown["hidden"]["reference"], shown["hidden"]["keys"]) == (None, {})


def test_an_entry_that_was_added_is_seen_at_once(folder: Path) -> None:
    opened = OpenedModels(OFFLINE)
    packaged = opened.named("qwen3-8b", CallWatch())
    assert packaged.found is None
    add("sample:gemma-3-27b", "qwen3-8b")
    assert opened.named("qwen3-8b", CallWatch()).found is not None


# --- what is loaded beside a model


def test_companions_are_said_as_they_are_opened(folder: Path) -> None:
    settings = WebSettings(models_dirs=(folder,))
    path = str(next(folder.rglob("*.gguf")))
    relative = path.removeprefix(f"{folder}/")
    flags = {"mmproj": relative, "lora": (relative, path), "draft_model": "qwen3-8b"}
    request = allowed_request(Request(context=4096, flags={"llama.cpp": flags}), settings)
    expected = {"mmproj": path, "lora": (path, path), "draft_model": "qwen3-8b"}
    assert (request.context, request.flags) == (4096, {"llama.cpp": expected})
    same = Request(flags={"llama.cpp": {"mmproj": "auto"}})
    assert allowed_request(same, settings) == same


def test_every_flag_that_names_a_file_is_checked() -> None:
    """`allowed_request` checks the flags of companions."""
    naming = [
        flag
        for engine in every_engine()
        for flag in engine.flags
        if flag.group == "companion" or flag.metavar in {"FILE", "FILES", "FOLDER", "MODEL", "PATH"}
    ]
    assert {flag.companion for flag in naming} == {"projector", "adapters", "drafter"}
    assert {flag.companion for flag in naming} <= set(Companions._fields)


def test_an_adapter_with_a_comma_in_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "a,b"
    path = write_model(folder)
    request = with_file("lora", path.name)
    with pytest.raises(UsageError, match="comma"):
        allowed_request(request, WebSettings(models_dirs=(folder,)))


# --- over HTTP


@pytest.mark.parametrize("call", ["inspect", "estimate", "check", "plan", "fit", "curves"])
def test_every_call_refuses(call: str, folder: Path) -> None:
    settings = replace(LOCAL, models_dirs=(folder,))
    with start(settings) as address:
        for name in (
            "/etc/passwd",
            "../other/x.gguf",
            "~/x.gguf",
            "file:///etc/passwd",
            "\\\\h\\s",
        ):
            answer = ask(address, f"/api/v1/{call}", {"model": name})
            assert (answer.status, answer.error["type"]) == (403, "NotAllowedError"), name
        for flag in ("mmproj", "lora", "draft_model") if call != "inspect" else ():
            answer = ask(address, f"/api/v1/{call}", {"model": "qwen3-8b", flag: "/etc/passwd"})
            assert (answer.status, answer.error["type"]) == (403, "NotAllowedError"), flag


def test_known_models_are_inspected() -> None:
    with start() as address:
        answer = ask(address, "/api/v1/inspect", {"model": "catalog:qwen3-8b"})
        unknown = ask(address, "/api/v1/inspect", {"model": "catalog:../x"})
    assert answer.status == 200
    assert (answer.json()["model"], answer.json()["origin"]) == ("qwen3-8b", "catalog")
    assert unknown.status == 404


def test_only_this_machine_is_told_where_folders_lie(folder: Path) -> None:
    there = WebSettings(host="0.0.0.0", port=0, network=False, token=TOKEN, models_dirs=(folder,))
    path = next(folder.rglob("*.gguf"))
    name = str(path.relative_to(folder))
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    broken = folder / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 60)
    with start(there) as address:
        for call in ("fit", "estimate", "inspect"):
            answer = ask(address, f"/api/v1/{call}", {"model": name}, headers=bearer)
            assert answer.status == 200, answer.body
            assert str(folder) not in answer.body.decode()
        assert (
            ask(address, "/api/v1/fit", {"model": name}, headers=bearer).json()["reference"] == name
        )
        answer = ask(address, "/api/v1/estimate", {"model": "broken.gguf"}, headers=bearer)
        assert answer.error["message"].startswith("broken.gguf: ")
        job = ask(address, "/api/v1/jobs/estimate", {"model": name}, headers=bearer).json()
        *_, end = events(address, f"/api/v1/jobs/{job['id']}/events", headers=bearer)
        assert end["data"]["reference"] == name
    with start(replace(LOCAL, models_dirs=(folder,))) as address:
        assert ask(address, "/api/v1/fit", {"model": name}).json()["reference"] == str(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}/a b/c.gguf", "a b/c.gguf"),
        ("llama-server -m '{}/a b.gguf'", "llama-server -m 'a b.gguf'"),
        ("{} holds 3 GGUF files", ". holds 3 GGUF files"),
        ("https://x.example{}/c.gguf", "https://x.example{}/c.gguf"),
        ("{}-more/c.gguf", "{}-more/c.gguf"),
        ("/more{}/c.gguf", "/more{}/c.gguf"),
    ],
)
def test_folders_are_told_apart(text: str, told: str, tmp_path: Path) -> None:
    folder = tmp_path / 'm\u00f6de"ls'
    folder.mkdir()
    settings = WebSettings(host="0.0.0.0", models_dirs=(folder,))
    answer = {"a": [text.replace("{}", str(folder))]}
    assert without_folders(answer, settings) == {"a": [told.replace("{}", str(folder))]}
    assert without_folders(answer, replace(settings, host="127.0.0.1")) == answer


def test_a_folder_with_a_quotation_mark_in_commands(tmp_path: Path) -> None:
    folder = tmp_path / "it's mine"
    folder.mkdir()
    answer = {"command": shlex.join(["llama-server", "-m", str(folder / "a.gguf")])}
    shown = without_folders(answer, WebSettings(host="0.0.0.0", models_dirs=(folder,)))
    assert shown == {"command": "llama-server -m 'a.gguf'"}


def test_a_file_that_was_given_alone(folder: Path) -> None:
    path = next(folder.rglob("*.gguf"))
    with path.open("rb") as file:  # most of it is a hole
        (path.parent / "beside.gguf").write_bytes(file.read(4096))
    settings = WebSettings(host="0.0.0.0", models_dirs=(path,))
    assert without_folders({"reference": str(path)}, settings) == {"reference": path.name}
    assert (
        allowed_reference(path.name, settings)
        == allowed_reference(str(path), settings)
        == str(path)
    )
    for name in ("beside.gguf", str(path.parent / "beside.gguf"), f"./{path.name}/x.gguf"):
        with pytest.raises((NotAllowedError, NotFoundError)):
            allowed_reference(name, settings)


def test_places_of_this_machine_are_not_told_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In messages of errors: of the catalog's file, and of stores that other programs keep."""
    places = {"EDGEKIT_DATA": "data", "HF_HUB_CACHE": "hub", "OLLAMA_MODELS": "ollama"}
    for name, place in {**places, "HOME": "home"}.items():
        monkeypatch.setenv(name, str(tmp_path / "secret" / place))
    secret, there = tmp_path / "secret", replace(LOCAL, host="0.0.0.0", token=TOKEN)
    snapshot = secret / "hub" / "models--org--name" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "broken.gguf").write_bytes(b"GGUF" + b"\xff" * 60)
    (secret / "data").mkdir()
    (secret / "data" / "catalog.db").write_bytes(b"no database" * 100)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with start(there) as address:
        broken = ask(address, "/api/v1/inspect", {"model": "org/name"}, headers=bearer)
        known = ask(address, "/api/v1/catalog", headers=bearer)
    assert broken.error["message"].startswith("models--org--name/snapshots/1/broken.gguf: ")
    assert known.json()["problems"][0].startswith("catalog.db: ")
    assert without_folders({"a": f"{secret}/home/b"}, there) == {"a": "b"}


def test_a_download_is_advised_to_whoever_sits_there() -> None:
    because = RangeNotSupportedError("no ranges")
    with pytest.raises(RangeNotSupportedError, match="hf download org/name") as refused:
        download_model("org/name", because, confirm=None, reach=Reach(within=()))
    assert "--download-up-to" not in str(refused.value)


def test_the_command_line_takes_paths_as_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert open_named("org/name", Session(reach=Reach(network=False))).found is not None


@pytest.mark.parametrize("name", ["qwen3-8b", "Qwen3 8B", "qwen3-8b:Q8_0", "catalog:qwen3-8b:Q8_0"])
def test_no_network_for_names_that_the_catalog_answers(name: str) -> None:
    assert not may_need_network(name)


@pytest.mark.parametrize("name", ["qwen3:8b", "llama3.1", "Qwen/Qwen3-8B"])
def test_network_where_another_server_may_be_asked(name: str) -> None:
    assert may_need_network(name)
