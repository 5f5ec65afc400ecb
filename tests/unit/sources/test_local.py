"""Paths on this machine: files, shard sets, folders, and everything else that a path can be."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE_S

from edgekit.errors import HeaderError, NotFoundError, RemoteInspectError, SourceError
from edgekit.sources import local as disk
from edgekit.sources import locate
from edgekit.sources.local import LocalFile, list_folder, locate_path, snapshot_folder
from edgekit.sources.types import Container, ModelFiles, Origin, Reach

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put(root: Path, *names: str, data: bytes = b"GGUF") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def weights(found: ModelFiles) -> list[str]:
    return [file.name for file in found.weights]


# One file's bytes


def test_a_file_is_read_at_any_place_and_ends_where_it_ends(tmp_path: Path) -> None:
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


def test_a_file_is_opened_by_the_first_read_only(tmp_path: Path) -> None:
    file = LocalFile(tmp_path / "later")
    put(tmp_path, "later", data=b"abc")
    assert file.read(1, 2) == b"bc"
    file.close()


def test_reading_past_four_gib_works(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as out:
        out.truncate(5 * 2**30)
        out.seek(5 * 2**30 - 3)
        out.write(b"end")
    file = LocalFile(tmp_path / "big")
    assert file.read(5 * 2**30 - 3, 10) == b"end"
    file.close()


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "f", data=b"x" * 100)
    file = LocalFile(tmp_path / "f")
    assert file.read(0, 1) == b"x"
    (tmp_path / "f").write_bytes(b"x" * 10)
    with pytest.raises(SourceError, match="was truncated"):
        file.read(0, 50)
    file.close()


# What is no file


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.gguf")
    caught: list[BaseException] = []

    def attempt() -> None:
        for act in (
            lambda: locate_path(tmp_path / "p.gguf"),
            lambda: LocalFile(tmp_path / "p.gguf").read(0, 1),
        ):
            try:
                act()
            except SourceError as error:
                caught.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(timeout=PATIENCE_S)
    assert [str(error).split("p.gguf ")[1] for error in caught] == [
        "is a pipe, not a file: give the path of a model"
    ] * 2


def test_a_pipe_that_takes_the_files_place_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is checked, then opened: in between it may come to mean something else."""
    put(tmp_path, "f")
    os.mkfifo(tmp_path / "pipe")
    status = (tmp_path / "f").stat()
    monkeypatch.setattr(disk, "look_up", lambda _: status)
    with pytest.raises(SourceError, match="a pipe"):
        LocalFile(tmp_path / "pipe").read(0, 1)


def test_a_socket_and_a_device_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name has a short limit
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s.gguf")
        with pytest.raises(SourceError, match="is a socket"):
            locate("./s.gguf")
    with pytest.raises(SourceError, match="/dev/zero is a device"):
        locate("/dev/zero")


@pytest.mark.parametrize("name", ["a.gguf", "folder"])
def test_links_in_a_circle_are_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / name)
    with pytest.raises(SourceError, match="points to itself"):
        locate(str(tmp_path / name))


def test_a_link_to_nothing_is_not_found_and_says_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").symlink_to(tmp_path / "gone.gguf")
    with pytest.raises(NotFoundError, match=r"a link to '.*gone\.gguf', which does not exist"):
        locate(str(tmp_path / "a.gguf"))


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder that may not be entered; root may enter everything, so be somebody else meanwhile."""
    put(tmp_path, "closed/m.gguf")
    folder = tmp_path / "closed"
    folder.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.chmod(0o700)


def test_no_permission_is_an_error_that_says_so(closed: Path) -> None:
    for path in (closed / "m.gguf", closed):
        with pytest.raises(SourceError, match="cannot be read by this user") as caught:
            locate(str(path))
        assert caught.value.exit_code == 4


def test_a_path_through_a_file_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "m.gguf")
    with pytest.raises(SourceError, match="part of the path is a file"):
        locate(f"{tmp_path}/m.gguf/x.gguf")


def test_a_path_that_is_too_long_is_an_error() -> None:
    with pytest.raises(SourceError, match="too long for a path"):
        locate("/" + "x" * 5000 + ".gguf")


@pytest.mark.parametrize(
    "text", ["./gemma-Q4_K_N.gguf", "gemma-Q4_K_N.gguf", "../here/gemma-Q4_K_N.gguf"]
)
def test_a_path_that_is_not_there_names_its_neighbours(
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
def test_what_looks_like_a_path_is_never_taken_for_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(NotFoundError, match=r"no such file|is empty|holds no"):
        locate(text)


def test_a_home_is_expanded() -> None:
    put(Path.home(), "models/m.gguf")
    assert locate("~/models/m.gguf").label == "m.gguf"


# Single files and their sets


def test_a_gguf_alone(tmp_path: Path) -> None:
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


def test_any_shard_means_the_set(tmp_path: Path) -> None:
    names = [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    put(tmp_path, *names, "other-00001-of-00003.gguf", "mmproj-F16.gguf")
    files = locate(str(tmp_path / names[1]))
    assert weights(files) == names
    assert files.label == names[0]
    assert files.projectors == ()  # it may be the other model's
    (tmp_path / "other-00001-of-00003.gguf").unlink()
    files = locate(str(tmp_path / names[2]))
    assert [file.name for file in files.projectors] == ["mmproj-F16.gguf"]


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    put(tmp_path, "m-00001-of-00003.gguf", "m-00003-of-00003.gguf")
    with pytest.raises(NotFoundError, match=r"is missing 1 of its shards \(00002\)"):
        locate(str(tmp_path / "m-00003-of-00003.gguf"))


def test_a_file_in_a_huge_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "MAX_FOLDER_ENTRIES", 5)
    put(
        tmp_path, *(f"{i}.txt" for i in range(20)), "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
    )
    assert len(locate(str(tmp_path / "m-00001-of-00002.gguf")).weights) == 2


def test_a_safetensors_file_brings_its_config_and_its_set(tmp_path: Path) -> None:
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


def test_a_config_means_geometry_and_its_folder_means_the_model(tmp_path: Path) -> None:
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
def test_a_file_without_a_telling_name_is_known_by_its_start(
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
def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, name: str, data: bytes, sentence: str
) -> None:
    put(tmp_path, name, data=data)
    with pytest.raises(HeaderError, match=sentence) as caught:
        locate(str(tmp_path / name))
    assert caught.value.exit_code == 5


# Folders


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(NotFoundError, match="models is empty"):
        locate(str(tmp_path / "models"))


def test_a_folder_that_is_named_like_a_hub_model_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "org/name/config.json")
    monkeypatch.chdir(tmp_path)
    files = locate("org/name")
    assert (files.origin, files.label) == (Origin.LOCAL, "name")


def test_a_folder_of_one_models_quantisations(tmp_path: Path) -> None:
    put(tmp_path, "m-Q8_0.gguf", "sub/m-Q4_K_M.gguf", "mmproj-F16.gguf", ".cache/m-Q4_K_M.gguf")
    files = locate(str(tmp_path))
    assert weights(files) == ["sub/m-Q4_K_M.gguf"]
    assert files.alternatives == ("Q8_0",)
    assert [file.name for file in files.projectors] == ["mmproj-F16.gguf"]


def test_a_folder_of_several_models_lists_them(tmp_path: Path) -> None:
    put(tmp_path, "gemma-Q4_K_M.gguf", "llama-Q4_K_M.gguf")
    with pytest.raises(NotFoundError, match="different models") as caught:
        locate(str(tmp_path))
    assert caught.value.candidates == ("gemma-Q4_K_M.gguf", "llama-Q4_K_M.gguf")


def test_a_folder_with_pickled_weights_is_its_config(tmp_path: Path) -> None:
    put(tmp_path, "config.json", "pytorch_model.bin")
    files = locate(str(tmp_path))
    assert files.container is Container.CONFIG
    assert files.notes


def test_a_folder_that_loops_is_walked_once(tmp_path: Path) -> None:
    put(tmp_path, "a/b/m.gguf", "a/b/c/too-deep.gguf", "m.gguf")
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.gguf")
    assert sorted(file.name for file in list_folder(tmp_path)) == ["a/b/m.gguf", "m.gguf"]


def test_a_folder_with_too_much_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MAX_FOLDER_ENTRIES", 10)
    put(tmp_path, *(f"d/{i}" for i in range(9)))
    assert len(list_folder(tmp_path)) == 9
    put(tmp_path, "d/one-more")
    with pytest.raises(SourceError, match="more than 10 files and folders"):
        locate(str(tmp_path))


def test_the_real_limit_is_reached_in_bounded_time(tmp_path: Path) -> None:
    for number in range(disk.MAX_FOLDER_ENTRIES + 1):
        (tmp_path / f"{number}").touch()
    with pytest.raises(SourceError, match="more than 20,000"):
        locate(str(tmp_path))


def test_a_name_that_is_not_text_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "config.json")
    (tmp_path / os.fsdecode(b"\xff\xfe.gguf")).write_bytes(b"GGUF")
    assert locate(str(tmp_path)).container is Container.CONFIG


def test_a_folder_of_snapshots_is_not_a_cache(tmp_path: Path) -> None:
    put(tmp_path, "mine/config.json", "mine/snapshots/1/config.json")
    assert locate(str(tmp_path / "mine")).origin is Origin.LOCAL


# A repository of the hub's cache, given by its path


def cached(root: Path, *, ref: str | None, commits: tuple[str, ...]) -> Path:
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


def test_a_cache_folder_means_its_main_revision(tmp_path: Path) -> None:
    folder = cached(tmp_path, ref=COMMIT, commits=("newest", COMMIT))
    files = locate(str(folder))
    assert (files.label, files.origin) == ("org/name", Origin.HUB_CACHE)
    assert files.config is not None
    assert COMMIT in files.config.open().name


@pytest.mark.parametrize("ref", [None, "gone", "../../..", "/", "x" * 200, "\xff"])
def test_without_a_main_revision_the_newest_snapshot(tmp_path: Path, ref: str | None) -> None:
    folder = cached(tmp_path, ref=ref, commits=("newest", "older"))
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
def test_a_revision_is_a_ref_or_a_commit_and_stays_inside(
    tmp_path: Path, revision: str, expected: str | None
) -> None:
    folder = cached(tmp_path, ref="newest", commits=("newest", "older"))
    put(folder, "refs/refs/pr/1", data=b"older\n")
    result = snapshot_folder(folder, revision)
    assert result == (None if expected is None else folder / "snapshots" / expected)


def test_a_cache_folder_without_a_snapshot_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "models--org--name" / "snapshots").mkdir(parents=True)
    with pytest.raises(NotFoundError, match="without a snapshot"):
        locate(str(tmp_path / "models--org--name"))


def test_a_slip_in_a_path_that_looks_like_a_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RemoteInspectError, match=r"Similar names on this machine: .*model\.gguf"):
        locate("folder/model.ggu", reach=Reach(network=False))
