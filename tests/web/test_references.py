"""Which references a request may name: nothing outside the --models-dir folders is opened, or its path shown."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.web.model_files import write_model
from tests.web.serving import LOCAL, ask, events, start

from edgekit.app.index import entry_of
from edgekit.app.open import open_named
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
from edgekit.index.store import save_entry
from edgekit.model import open_model
from edgekit.request import Request, Session
from edgekit.sources.download import download_model
from edgekit.sources.locator import path_of
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

NO_FOLDERS = WebSettings()
TOKEN = "correct-horse-battery"
OFFLINE = WebSettings(network=False, cache=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for --models-dir. Its sibling `other` also has a model, which must not be opened."""
    write_model(tmp_path / "given" / "org" / "name")
    write_model(tmp_path / "other")
    return (tmp_path / "given").resolve()


# --- model IDs and URLs

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
def test_model_id_or_url_is_allowed(name: str) -> None:
    assert allowed_reference(f"  {name} ", NO_FOLDERS) == name
    assert path_of(name) is None


# --- paths

FORBIDDEN_PATHS = (
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


@pytest.mark.parametrize("name", FORBIDDEN_PATHS)
@pytest.mark.parametrize("with_models_dir", [False, True])
def test_path_outside_the_folders_is_not_allowed(
    name: str, folder: Path, *, with_models_dir: bool
) -> None:
    settings = WebSettings(models_dirs=(folder,) if with_models_dir else ())
    with pytest.raises(NotAllowedError):
        allowed_reference(name, settings)
    for flag in ("mmproj", "lora", "draft_model"):
        with pytest.raises(NotAllowedError):
            allowed_request(with_file(flag, name), settings)


@pytest.mark.parametrize("name", ["", " ", "\0", "model\0.gguf", "a\nb", "x" * 9000, "\ud800"])
def test_empty_or_malformed_reference_is_a_usage_error(name: str, folder: Path) -> None:
    with pytest.raises(UsageError):
        allowed_reference(name, WebSettings(models_dirs=(folder,)))


@pytest.mark.parametrize(
    "name", ["model.gguf", "./model.gguf", ".", "folder/model.safetensors", "config.json"]
)
def test_path_without_models_dir_is_not_allowed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is the same whether or not the file exists."""
    monkeypatch.chdir(tmp_path)
    messages = []
    for _ in range(2):
        with pytest.raises(NotAllowedError, match="--models-dir") as raised:
            allowed_reference(name, NO_FOLDERS)
        messages.append(str(raised.value))
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(b"GGUF")
    assert messages[0] == messages[1]


def test_path_inside_models_dir_is_allowed(folder: Path) -> None:
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
def test_missing_file_inside_models_dir_is_not_found(name: str, folder: Path) -> None:
    for text in (name, str(folder / name)):
        with pytest.raises(NotFoundError):
            allowed_reference(text, WebSettings(models_dirs=(folder,)))


def test_path_next_to_models_dir_is_not_allowed(folder: Path) -> None:
    """The message is the same whether or not the file exists."""
    settings = WebSettings(models_dirs=(folder,))
    other = folder.parent / "other"
    for path in (other, *other.iterdir(), other / "nothing.gguf", Path(f"{folder}-more/x.gguf")):
        with pytest.raises(NotAllowedError, match="outside the --models-dir folders"):
            allowed_reference(str(path), settings)


def test_models_dir_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    settings = WebSettings(models_dirs=(link,))
    assert allowed_reference("org/name", settings) == str(folder / "org" / "name")
    assert allowed_reference(str(link / "org" / "name"), settings) == str(folder / "org" / "name")
    assert allowed_reference(str(folder / "org" / "name"), settings) == str(folder / "org" / "name")


def _link_to_file(folder: Path, other: Path) -> str:
    (folder / "out.gguf").symlink_to(next(other.iterdir()))
    return "out.gguf"


def _link_to_folder(folder: Path, other: Path) -> str:
    (folder / "out").symlink_to(other)
    return f"out/{next(other.iterdir()).name}"


def _link_to_parent(folder: Path, other: Path) -> str:
    (folder / "up").symlink_to("..")
    return f"up/other/{next(other.iterdir()).name}"


def _chain_of_links(folder: Path, other: Path) -> str:
    (folder / "first.gguf").symlink_to("second.gguf")
    (folder / "second.gguf").symlink_to(next(other.iterdir()))
    return "first.gguf"


def _link_to_device(folder: Path, _: Path) -> str:
    (folder / "zero.gguf").symlink_to("/dev/zero")
    return "zero.gguf"


def _named_pipe(folder: Path, _: Path) -> str:
    os.mkfifo(folder / "pipe.gguf")
    return "pipe.gguf"


@pytest.mark.parametrize(
    "make",
    [
        _link_to_file,
        _link_to_folder,
        _link_to_parent,
        _chain_of_links,
        _link_to_device,
        _named_pipe,
    ],
)
def test_link_to_outside_or_special_file_is_not_allowed(
    make: Callable[[Path, Path], str], folder: Path
) -> None:
    name = make(folder, folder.parent / "other")
    with pytest.raises(NotAllowedError):
        allowed_reference(name, WebSettings(models_dirs=(folder,)))


def test_broken_or_circular_link_is_not_found(folder: Path) -> None:
    (folder / "gone.gguf").symlink_to("nothing.gguf")
    (folder / "round.gguf").symlink_to("round.gguf")
    for name in ("gone.gguf", "round.gguf"):
        with pytest.raises(NotFoundError):
            allowed_reference(name, WebSettings(models_dirs=(folder,)))


def test_folder_whose_model_is_a_link_to_outside_is_not_opened(folder: Path) -> None:
    """The folder itself is inside, but its only model is a link to outside."""
    inner = folder / "inner"
    inner.mkdir()
    (inner / "model.gguf").symlink_to(next((folder.parent / "other").iterdir()))
    settings = WebSettings(models_dirs=(folder,))
    with pytest.raises(NotAllowedError, match="outside the --models-dir"):
        files_inside(allowed_reference("inner", settings), settings)
    with pytest.raises(NotAllowedError):
        OpenedModels(settings).named("inner", CallWatch())
    with pytest.raises(NotAllowedError):
        allowed_request(with_file("lora", "org/name,inner"), settings)


def test_candidates_do_not_include_links_to_outside(folder: Path) -> None:
    write_model(folder / "more", "qwen3-30b-a3b")
    (folder / "linked").symlink_to(folder.parent / "other")
    settings = WebSettings(models_dirs=(folder,))
    for name in (".", str(folder)):
        with pytest.raises(NotFoundError, match="2 GGUF files of different models") as raised:
            OpenedModels(settings).named(name, CallWatch())
        assert len(raised.value.candidates) == 2
        assert "linked" not in str(raised.value)


def test_not_allowed_error_quotes_the_reference_as_typed(folder: Path) -> None:
    (folder / "out.gguf").symlink_to(next((folder.parent / "other").iterdir()))
    with pytest.raises(NotAllowedError, match=r"'out\.gguf' is a link to a place outside"):
        allowed_reference("out.gguf", WebSettings(models_dirs=(folder,)))
    with pytest.raises(NotAllowedError, match=r"'\.' is a path"):
        allowed_reference(".", NO_FOLDERS)


def test_link_to_a_file_inside_models_dir_is_followed(folder: Path) -> None:
    """The Hugging Face cache consists of such links."""
    path = next(folder.rglob("*.gguf"))
    inner = folder / "inner"
    inner.mkdir()
    (inner / "model.gguf").symlink_to(path)
    settings = WebSettings(models_dirs=(folder,))
    assert allowed_reference("inner/model.gguf", settings) == str(path)
    assert OpenedModels(settings).named("inner", CallWatch()).found is not None


# --- names that are also paths in the current folder


ALSO_PATHS = (
    "org/name:Q4_K_M",
    "org/name@main/a/b.gguf",
    "qwen3-8b",
    "mine",
    "mine:1b",
    "Qwen/Qwen3-8B",
)


@pytest.mark.parametrize("name", [*ALSO_PATHS, "org/name", "org/nothing", "Qwen/nothing"])
def test_name_does_not_depend_on_the_current_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --models-dir, a name is never a path, and the answer does not show which paths exist."""
    monkeypatch.chdir(tmp_path)
    before = offline_answer(name)
    write_model(tmp_path / "org" / "name")
    for path in ALSO_PATHS:
        write_model(tmp_path / path)
    assert allowed_reference(name, NO_FOLDERS) == name
    assert offline_answer(name) == before
    assert str(tmp_path) not in str(before)


def offline_answer(name: str) -> object:
    """The catalog entry or the error for a name, on a server without network access."""
    try:
        named = OpenedModels(OFFLINE).named(name, CallWatch())
    except EdgekitError as error:
        return type(error), str(error)
    assert named.found is None  # no file was read
    assert named.entry is not None
    return named.name, named.entry.id, named.notes


def test_command_for_a_hub_model_ignores_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert typed_gguf_words("org/name", is_name=True) == ["-hf", "org/name"]
    assert typed_gguf_words("org/name") == [
        "-m",
        "org/name",
    ]  # the default: what the user typed is a path


def test_models_dir_takes_precedence_over_the_hub(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert allowed_reference("org/name", WebSettings(models_dirs=(folder,))) == str(
        folder / "org" / "name"
    )


# --- models that the user added to the catalog


def add_to_catalog(reference: str, name: str) -> None:
    save_entry(entry_of(open_model(reference), reference, name=name))


def test_users_catalog_entry_opens_only_a_file_inside_models_dir(folder: Path) -> None:
    inside, outside = next(folder.rglob("*.gguf")), next((folder.parent / "other").iterdir())
    add_to_catalog(str(inside), "mine")
    add_to_catalog(str(outside), "hidden")
    add_to_catalog("sample:gemma-3-27b", "sampled")
    settings = WebSettings(models_dirs=(folder,), network=False)
    for name in ("mine", "catalog:mine", "catalog:sampled", "sampled"):
        result = OpenedModels(settings).named(name, CallWatch())
        assert result.found is not None, name
    for name in ("hidden", "catalog:hidden", "HIDDEN", "hidden:Q8_0", "hidden Q8_0", "hid den"):
        with pytest.raises(NotAllowedError, match="hidden was added to the index"):
            allowed_reference(name, settings)
        with pytest.raises(NotAllowedError):
            allowed_reference(name, NO_FOLDERS)


def test_users_catalog_entry_whose_file_is_gone_is_opened_without_it(folder: Path) -> None:
    path = next(folder.rglob("*.gguf"))
    add_to_catalog(str(path), "mine")
    path.unlink()
    result = OpenedModels(WebSettings(models_dirs=(folder,), network=False)).named(
        "mine", CallWatch()
    )
    assert result.found is None
    assert "is gone" in result.notes[0]
    with pytest.raises(NotAllowedError):
        allowed_reference("mine", NO_FOLDERS)


def test_catalog_shows_a_users_path_only_inside_models_dir(folder: Path) -> None:
    inside, outside = next(folder.rglob("*.gguf")), next((folder.parent / "other").iterdir())
    add_to_catalog(str(inside), "mine")
    add_to_catalog(str(outside), "hidden")
    add_to_catalog("sample:gemma-3-27b", "sampled")
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


def test_entry_added_to_the_catalog_is_used_at_once(folder: Path) -> None:
    opened = OpenedModels(OFFLINE)
    packaged = opened.named("qwen3-8b", CallWatch())
    assert packaged.found is None
    add_to_catalog("sample:gemma-3-27b", "qwen3-8b")
    assert opened.named("qwen3-8b", CallWatch()).found is not None


# --- files that are loaded with the model: projector, adapters, draft model


def test_companion_references_become_allowed_paths(folder: Path) -> None:
    settings = WebSettings(models_dirs=(folder,))
    path = str(next(folder.rglob("*.gguf")))
    relative = path.removeprefix(f"{folder}/")
    flags = {"mmproj": relative, "lora": (relative, path), "draft_model": "qwen3-8b"}
    request = allowed_request(Request(context=4096, flags={"llama.cpp": flags}), settings)
    expected = {"mmproj": path, "lora": (path, path), "draft_model": "qwen3-8b"}
    assert (request.context, request.flags) == (4096, {"llama.cpp": expected})
    automatic = Request(flags={"llama.cpp": {"mmproj": "auto"}})
    assert allowed_request(automatic, settings) == automatic


def test_every_flag_that_takes_a_path_is_a_companion() -> None:
    """`allowed_request` checks only flags with a `companion`: so every flag that takes a path must have one."""
    file_flags = [
        flag
        for engine in every_engine()
        for flag in engine.flags
        if flag.group == "companion" or flag.metavar in {"FILE", "FILES", "FOLDER", "MODEL", "PATH"}
    ]
    assert {flag.companion for flag in file_flags} == {"projector", "adapters", "drafter"}
    assert {flag.companion for flag in file_flags} <= set(Companions._fields)


def test_adapter_path_with_a_comma_is_a_usage_error(tmp_path: Path) -> None:
    folder = tmp_path / "a,b"
    path = write_model(folder)
    request = with_file("lora", path.name)
    with pytest.raises(UsageError, match="comma"):
        allowed_request(request, WebSettings(models_dirs=(folder,)))


# --- over HTTP


@pytest.mark.parametrize("call", ["inspect", "estimate", "check", "plan", "fit", "curves"])
def test_every_call_refuses_paths_outside_models_dir(call: str, folder: Path) -> None:
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


def test_inspect_of_a_catalog_model() -> None:
    with start() as address:
        answer = ask(address, "/api/v1/inspect", {"model": "catalog:qwen3-8b"})
        unknown = ask(address, "/api/v1/inspect", {"model": "catalog:../x"})
    assert answer.status == 200
    assert (answer.json()["model"], answer.json()["origin"]) == ("qwen3-8b", "catalog")
    assert unknown.status == 404


def test_folder_paths_are_shown_only_by_a_loopback_server(folder: Path) -> None:
    public = WebSettings(host="0.0.0.0", port=0, network=False, token=TOKEN, models_dirs=(folder,))
    path = next(folder.rglob("*.gguf"))
    name = str(path.relative_to(folder))
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    broken = folder / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 60)
    with start(public) as address:
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
    ("text", "shown"),
    [
        ("{}/a b/c.gguf", "a b/c.gguf"),
        ("llama-server -m '{}/a b.gguf'", "llama-server -m 'a b.gguf'"),
        ("{} holds 3 GGUF files", ". holds 3 GGUF files"),
        ("https://x.example{}/c.gguf", "https://x.example{}/c.gguf"),
        ("{}-more/c.gguf", "{}-more/c.gguf"),
        ("/more{}/c.gguf", "/more{}/c.gguf"),
    ],
)
def test_without_folders_removes_only_whole_paths(text: str, shown: str, tmp_path: Path) -> None:
    folder = tmp_path / 'm\u00f6de"ls'
    folder.mkdir()
    settings = WebSettings(host="0.0.0.0", models_dirs=(folder,))
    answer = {"a": [text.replace("{}", str(folder))]}
    assert without_folders(answer, settings) == {"a": [shown.replace("{}", str(folder))]}
    assert without_folders(answer, replace(settings, host="127.0.0.1")) == answer


def test_without_folders_removes_a_quoted_folder_from_a_command(tmp_path: Path) -> None:
    folder = tmp_path / "it's mine"
    folder.mkdir()
    answer = {"command": shlex.join(["llama-server", "-m", str(folder / "a.gguf")])}
    shown = without_folders(answer, WebSettings(host="0.0.0.0", models_dirs=(folder,)))
    assert shown == {"command": "llama-server -m 'a.gguf'"}


def test_models_dir_may_be_a_single_file(folder: Path) -> None:
    path = next(folder.rglob("*.gguf"))
    with path.open("rb") as file:  # a sparse file of several GB
        (path.parent / "sibling.gguf").write_bytes(file.read(4096))
    settings = WebSettings(host="0.0.0.0", models_dirs=(path,))
    assert without_folders({"reference": str(path)}, settings) == {"reference": path.name}
    assert (
        allowed_reference(path.name, settings)
        == allowed_reference(str(path), settings)
        == str(path)
    )
    for name in ("sibling.gguf", str(path.parent / "sibling.gguf"), f"./{path.name}/x.gguf"):
        with pytest.raises((NotAllowedError, NotFoundError)):
            allowed_reference(name, settings)


def test_data_and_cache_folders_are_not_shown_to_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog, and the model folders of other programs, are in folders that only the environment names."""
    folders = {
        "EDGEKIT_DATA": "data",
        "HF_HUB_CACHE": "hub",
        "OLLAMA_MODELS": "ollama",
        "HOME": "home",
    }
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(tmp_path / "secret" / folder))
    secret, public = tmp_path / "secret", replace(LOCAL, host="0.0.0.0", token=TOKEN)
    snapshot = secret / "hub" / "models--org--name" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "broken.gguf").write_bytes(b"GGUF" + b"\xff" * 60)
    (secret / "data").mkdir()
    (secret / "data" / "catalog.db").write_bytes(b"no database" * 100)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with start(public) as address:
        broken = ask(address, "/api/v1/inspect", {"model": "org/name"}, headers=bearer)
        catalog = ask(address, "/api/v1/catalog", headers=bearer)
    assert broken.error["message"].startswith("models--org--name/snapshots/1/broken.gguf: ")
    assert catalog.json()["problems"][0].startswith("catalog.db: ")
    assert without_folders({"a": f"{secret}/home/b"}, public) == {"a": "b"}


def test_download_hint_of_the_server_names_no_flag_of_the_command_line() -> None:
    error = RangeNotSupportedError("no ranges")
    with pytest.raises(RangeNotSupportedError, match="hf download org/name") as raised:
        download_model("org/name", error, confirm=None, reach=Reach(within=()))
    assert "--download-up-to" not in str(raised.value)


def test_command_line_opens_paths_in_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert open_named("org/name", Session(reach=Reach(network=False))).found is not None


@pytest.mark.parametrize("name", ["qwen3-8b", "Qwen3 8B", "qwen3-8b:Q8_0", "catalog:qwen3-8b:Q8_0"])
def test_may_need_network_is_false_for_catalog_names(name: str) -> None:
    assert not may_need_network(name)


@pytest.mark.parametrize("name", ["qwen3:8b", "llama3.1", "Qwen/Qwen3-8B"])
def test_may_need_network_is_true_for_hub_and_ollama_names(name: str) -> None:
    assert may_need_network(name)
