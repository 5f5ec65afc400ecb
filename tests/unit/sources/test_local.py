"""Paths on this machine: files, shards, folders, and everything else that a path can be."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE_S

from edgekit.errors import HeaderError, NotFoundError, RemoteInspectError, SourceError
from edgekit.sources import local as disk
from edgekit.sources.folders import data_folder
from edgekit.sources.local import LocalFile, list_folder, locate_path, snapshot_folder
from edgekit.sources.locator import locate
from edgekit.sources.types import Container, ModelFiles, Origin, Reach

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put(root: Path, *names: str, data: bytes = b"GGUF") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def weights(files: ModelFiles) -> list[str]:
    return [file.name for file in files.weights]


# Reading a file


def test_local_file_is_read_at_any_offset_up_to_its_end(tmp_path: Path) -> None:
    put(tmp_path, "f", data=bytes(range(100)))
    file = LocalFile(tmp_path / "f")
    assert file.size_bytes == 100
    assert file.read(90, 5) == bytes(range(90, 95))
    assert file.read(0, 3, ahead=50) == bytes(range(3))
    assert file.read(98, 1000) == bytes((98, 99))
    assert file.read(0, 2**62) == bytes(range(100))
    assert file.read(100, 1) == b""
    assert file.read(2**63, 1) == b""
    assert file.read(5, 0) == b""
    with pytest.raises(ValueError, match="-1"):
        file.read(-1, 5)
    file.close()
    file.close()
    assert file.read(0, 1) == b"\0"
    file.close()


def test_local_file_is_opened_by_the_first_read(tmp_path: Path) -> None:
    file = LocalFile(tmp_path / "later")
    put(tmp_path, "later", data=b"abc")
    assert file.read(1, 2) == b"bc"
    file.close()


def test_local_file_is_read_past_four_gib(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as out:
        out.truncate(5 * 2**30)
        out.seek(5 * 2**30 - 3)
        out.write(b"end")
    file = LocalFile(tmp_path / "big")
    assert file.read(5 * 2**30 - 3, 10) == b"end"
    file.close()


def test_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "f", data=b"x" * 100)
    file = LocalFile(tmp_path / "f")
    assert file.read(0, 1) == b"x"
    (tmp_path / "f").write_bytes(b"x" * 10)
    with pytest.raises(SourceError, match="was truncated"):
        file.read(0, 50)
    file.close()


# Paths that cannot be read


def test_pipe_is_an_error_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.gguf")
    caught: list[BaseException] = []

    def read_pipe() -> None:
        for read in (
            lambda: locate_path(tmp_path / "p.gguf"),
            lambda: LocalFile(tmp_path / "p.gguf").read(0, 1),
        ):
            try:
                read()
            except SourceError as error:
                caught.append(error)

    thread = threading.Thread(target=read_pipe, daemon=True)
    thread.start()
    thread.join(timeout=PATIENCE_S)
    assert [str(error).split("p.gguf ")[1] for error in caught] == [
        "is a pipe, not a file: give the path of a model"
    ] * 2


def test_pipe_that_replaces_a_file_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path may change between the check and the opening."""
    put(tmp_path, "f")
    os.mkfifo(tmp_path / "pipe")
    status = (tmp_path / "f").stat()
    monkeypatch.setattr(disk, "look_up", lambda _: status)
    with pytest.raises(SourceError, match="a pipe"):
        LocalFile(tmp_path / "pipe").read(0, 1)


def test_socket_and_device_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s.gguf")
        with pytest.raises(SourceError, match="is a socket"):
            locate("./s.gguf")
    with pytest.raises(SourceError, match="/dev/zero is a device"):
        locate("/dev/zero")


@pytest.mark.parametrize("name", ["a.gguf", "folder"])
def test_circular_links_are_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / name)
    with pytest.raises(SourceError, match="points to itself"):
        locate(str(tmp_path / name))


def test_broken_link_is_not_found_and_names_its_target(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").symlink_to(tmp_path / "gone.gguf")
    with pytest.raises(NotFoundError, match=r"a link to '.*gone\.gguf', which does not exist"):
        locate(str(tmp_path / "a.gguf"))


@pytest.fixture
def unreadable(tmp_path: Path) -> Iterator[Path]:
    """A folder without permissions. Root may read everything, so the test runs as another user."""
    put(tmp_path, "unreadable/m.gguf")
    folder = tmp_path / "unreadable"
    folder.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.chmod(0o700)


def test_path_without_permission_is_an_error(unreadable: Path) -> None:
    for path in (unreadable / "m.gguf", unreadable):
        with pytest.raises(SourceError, match="cannot be read by this user") as caught:
            locate(str(path))
        assert caught.value.exit_code == 4


def test_path_through_a_file_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "m.gguf")
    with pytest.raises(SourceError, match="part of the path is a file"):
        locate(f"{tmp_path}/m.gguf/x.gguf")


def test_path_that_is_too_long_is_an_error() -> None:
    with pytest.raises(SourceError, match="too long for a path"):
        locate("/" + "x" * 5000 + ".gguf")


@pytest.mark.parametrize(
    "text", ["./gemma-Q4_K_N.gguf", "gemma-Q4_K_N.gguf", "../here/gemma-Q4_K_N.gguf"]
)
def test_missing_path_suggests_similar_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    put(tmp_path, "here/gemma-Q4_K_M.gguf", "here/other.txt")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(NotFoundError, match="no such file or folder") as caught:
        locate(text)
    assert [Path(name).name for name in caught.value.candidates] == ["gemma-Q4_K_M.gguf"]


@pytest.mark.parametrize(
    "text", ["/nowhere/x", "~/x", ".", "..", "./x", "C:\\models\\x", "D:/x", "a\\b", "a/b.gguf"]
)
def test_text_that_looks_like_a_path_is_never_a_model_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(NotFoundError, match=r"no such file|is empty|holds no"):
        locate(text)


def test_tilde_is_expanded() -> None:
    put(Path.home(), "models/m.gguf")
    assert locate("~/models/m.gguf").label == "m.gguf"


# Files and their shards


def test_single_gguf_file(tmp_path: Path) -> None:
    put(tmp_path, "m-Q4_K_M.gguf", data=b"GGUF" + bytes(60))
    files = locate(str(tmp_path / "m-Q4_K_M.gguf"))
    assert (files.container, files.origin) == (Container.GGUF, Origin.LOCAL)
    assert files.label == "m-Q4_K_M.gguf"
    assert files.reference == str(tmp_path / "m-Q4_K_M.gguf")
    assert files.weights[0].size_bytes == 64
    source = files.weights[0].open()
    assert source.read(0, 4) == b"GGUF"
    assert source.name == str(tmp_path / "m-Q4_K_M.gguf")
    source.close()


def test_any_shard_stands_for_all_of_them(tmp_path: Path) -> None:
    names = [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    put(tmp_path, *names, "other-00001-of-00003.gguf", "mmproj-F16.gguf")
    files = locate(str(tmp_path / names[1]))
    assert weights(files) == names
    assert files.label == names[0]
    assert files.projectors == ()  # may belong to the other model
    (tmp_path / "other-00001-of-00003.gguf").unlink()
    files = locate(str(tmp_path / names[2]))
    assert [file.name for file in files.projectors] == ["mmproj-F16.gguf"]


def test_missing_shard_is_named_in_the_error(tmp_path: Path) -> None:
    put(tmp_path, "m-00001-of-00003.gguf", "m-00003-of-00003.gguf")
    with pytest.raises(NotFoundError, match=r"is missing 1 of its shards \(00002\)"):
        locate(str(tmp_path / "m-00003-of-00003.gguf"))


def test_file_in_a_folder_over_the_entry_limit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MAX_FOLDER_ENTRIES", 5)
    put(
        tmp_path, *(f"{i}.txt" for i in range(20)), "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
    )
    assert len(locate(str(tmp_path / "m-00001-of-00002.gguf")).weights) == 2


def test_safetensors_shard_or_index_is_found_with_config_and_shards(tmp_path: Path) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    put(tmp_path, *names, "config.json", "model.safetensors.index.json", "extra.safetensors")
    for name in (names[0], "model.safetensors.index.json"):
        files = locate(str(tmp_path / name))
        assert files.container is Container.SAFETENSORS
        assert weights(files) == names
        assert files.config is not None
        assert files.index is not None
    files = locate(str(tmp_path / "extra.safetensors"))
    assert weights(files) == ["extra.safetensors"]


def test_config_path_is_a_config_and_its_folder_is_the_model(tmp_path: Path) -> None:
    put(tmp_path, "config.json", "model.safetensors")
    alone, folder = locate(str(tmp_path / "config.json")), locate(str(tmp_path))
    assert (alone.container, alone.weights) == (Container.CONFIG, ())
    assert alone.config is not None
    assert (folder.container, weights(folder)) == (Container.SAFETENSORS, ["model.safetensors"])


@pytest.mark.parametrize(
    ("data", "container"),
    [
        (b"GGUF\3\0\0\0" + bytes(20), Container.GGUF),
        (struct.pack("<Q", 16) + b'{"a":{}}        ', Container.SAFETENSORS),
    ],
)
def test_file_without_a_suffix_is_recognised_by_its_first_bytes(
    tmp_path: Path, data: bytes, container: Container
) -> None:
    put(tmp_path, "sha256-abc", data=data)
    files = locate(str(tmp_path / "sha256-abc"))
    assert (files.container, weights(files)) == (container, ["sha256-abc"])


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("m.bin", b"\x80\x02}q\x00.", "unpickling runs code"),
        ("m.txt", b"hello world", r"neither GGUF nor safetensors: the file starts with b'hell'"),
        ("m.txt", b"", "file is empty"),
        ("m", struct.pack("<Q", 2**60) + b"{", "neither GGUF nor safetensors"),
        ("m", b"{", "neither GGUF nor safetensors"),
        ("m.html", b"<!DOCTYPE html>", "neither GGUF nor safetensors"),
    ],
)
def test_file_of_another_format_is_an_error(
    tmp_path: Path, name: str, data: bytes, sentence: str
) -> None:
    put(tmp_path, name, data=data)
    with pytest.raises(HeaderError, match=sentence) as caught:
        locate(str(tmp_path / name))
    assert caught.value.exit_code == 5


# Folders


def test_empty_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(NotFoundError, match="models is empty"):
        locate(str(tmp_path / "models"))


def test_folder_named_like_a_hub_model_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "org/name/config.json")
    monkeypatch.chdir(tmp_path)
    files = locate("org/name")
    assert (files.origin, files.label) == (Origin.LOCAL, "name")


def test_folder_with_quantisations_of_one_model(tmp_path: Path) -> None:
    put(tmp_path, "m-Q8_0.gguf", "sub/m-Q4_K_M.gguf", "mmproj-F16.gguf", ".cache/m-Q4_K_M.gguf")
    files = locate(str(tmp_path))
    assert weights(files) == ["sub/m-Q4_K_M.gguf"]
    assert files.alternatives == ("Q8_0",)
    assert [file.name for file in files.projectors] == ["mmproj-F16.gguf"]


def test_folder_of_several_models_lists_them(tmp_path: Path) -> None:
    put(tmp_path, "gemma-Q4_K_M.gguf", "llama-Q4_K_M.gguf")
    with pytest.raises(NotFoundError, match="different models") as caught:
        locate(str(tmp_path))
    assert caught.value.candidates == ("gemma-Q4_K_M.gguf", "llama-Q4_K_M.gguf")


def test_folder_with_pickled_weights_is_reduced_to_its_config(tmp_path: Path) -> None:
    put(tmp_path, "config.json", "pytorch_model.bin")
    files = locate(str(tmp_path))
    assert files.container is Container.CONFIG
    assert files.notes


def test_list_folder_follows_no_loops_and_skips_deep_and_special_files(tmp_path: Path) -> None:
    put(tmp_path, "a/b/m.gguf", "a/b/c/too-deep.gguf", "m.gguf")
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.gguf")
    assert sorted(file.name for file in list_folder(tmp_path)) == ["a/b/m.gguf", "m.gguf"]


def test_folder_over_the_entry_limit_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MAX_FOLDER_ENTRIES", 10)
    put(tmp_path, *(f"d/{i}" for i in range(9)))
    assert len(list_folder(tmp_path)) == 9
    put(tmp_path, "d/one-more")
    with pytest.raises(SourceError, match="more than 10 files and folders"):
        locate(str(tmp_path))


def test_folder_over_the_real_entry_limit_is_an_error(tmp_path: Path) -> None:
    for number in range(disk.MAX_FOLDER_ENTRIES + 1):
        (tmp_path / f"{number}").touch()
    with pytest.raises(SourceError, match="more than 20,000"):
        locate(str(tmp_path))


def test_file_name_that_is_not_utf8_is_ignored(tmp_path: Path) -> None:
    put(tmp_path, "config.json")
    (tmp_path / os.fsdecode(b"\xff\xfe.gguf")).write_bytes(b"GGUF")
    assert locate(str(tmp_path)).container is Container.CONFIG


def test_folder_with_snapshots_is_not_taken_for_a_hub_cache(tmp_path: Path) -> None:
    put(tmp_path, "mine/config.json", "mine/snapshots/1/config.json")
    assert locate(str(tmp_path / "mine")).origin is Origin.LOCAL


# Folders of the hub's cache, given by path


def hub_cache(root: Path, *, ref: str | None, commits: tuple[str, ...]) -> Path:
    folder = root / "models--org--name"
    for number, commit in enumerate(commits):
        put(folder, f"blobs/{commit}", data=b"{}")
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").symlink_to(folder / "blobs" / commit)
        os.utime(snapshot, (1000 - number, 1000 - number))
    if ref is not None:
        put(folder, "refs/main", data=ref.encode())
    return folder


def test_hub_cache_folder_stands_for_its_main_revision(tmp_path: Path) -> None:
    folder = hub_cache(tmp_path, ref=COMMIT, commits=("newest", COMMIT))
    files = locate(str(folder))
    assert (files.label, files.origin) == ("org/name", Origin.HUB_CACHE)
    assert files.config is not None
    assert COMMIT in files.config.open().name


@pytest.mark.parametrize("ref", [None, "gone", "../../..", "/", "x" * 200, "\xff"])
def test_snapshot_folder_without_a_valid_main_ref_is_the_newest(
    tmp_path: Path, ref: str | None
) -> None:
    folder = hub_cache(tmp_path, ref=ref, commits=("newest", "older"))
    assert snapshot_folder(folder) == folder / "snapshots" / "newest"


@pytest.mark.parametrize(
    ("revision", "expected"),
    [
        ("older", "older"),
        ("refs/pr/1", "older"),
        ("v2", None),
        ("../../blobs", None),
        ("..", None),
        ("/etc", None),
        ("a\\b", None),
    ],
)
def test_snapshot_folder_of_a_revision_stays_inside_the_cache(
    tmp_path: Path, revision: str, expected: str | None
) -> None:
    folder = hub_cache(tmp_path, ref="newest", commits=("newest", "older"))
    put(folder, "refs/refs/pr/1", data=b"older\n")
    result = snapshot_folder(folder, revision)
    assert result == (None if expected is None else folder / "snapshots" / expected)


def test_hub_cache_folder_without_a_snapshot_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "models--org--name" / "snapshots").mkdir(parents=True)
    with pytest.raises(NotFoundError, match="without a snapshot"):
        locate(str(tmp_path / "models--org--name"))


def test_mistyped_path_that_looks_like_a_hub_name_suggests_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RemoteInspectError, match=r"Similar names on this machine: .*model\.gguf"):
        locate("folder/model.ggu", reach=Reach(network=False))


# The data folder


@pytest.mark.parametrize(
    ("platform", "variable", "folder"),
    [
        ("linux", "", "home/.local/share/edgekit"),
        ("linux", "XDG_DATA_HOME", "given/edgekit"),
        ("darwin", "", "home/Library/Application Support/edgekit"),
        ("win32", "LOCALAPPDATA", "given/edgekit"),
        ("linux", "EDGEKIT_DATA", "given"),
    ],
)
def test_data_folder_of_each_platform(
    platform: str, variable: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EDGEKIT_DATA", "XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "given"))
    monkeypatch.setattr(sys, "platform", platform)
    assert data_folder() == tmp_path / folder
