"""`edgekit index update ADDRESS`: checksums, signatures, several updates at once, and killed ones."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import date, timedelta
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.unit.index.test_merge import rows_of

from edgekit.app import index_update
from edgekit.cli import main
from edgekit.index import read_index
from edgekit.index.database import index_file, index_problem, packaged_file
from edgekit.index.merge import FACTS_OF_GEOMETRY
from edgekit.index.tables import Row, table_named, write_checksums, write_sqlite

# Newer than EdgeKit's own index, and not in the future whatever the clock says.
DAY = (date.fromisoformat(packaged_file().facts["built"]) + timedelta(days=1)).isoformat()
MODEL = "merged-test-model"


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("EDGEKIT_INDEX_URL", raising=False)
    return tmp_path / "data"


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """An index with one model, with SHA256SUMS next to it."""
    folder = tmp_path / "published"
    folder.mkdir()
    path = folder / "index.sqlite"
    write_sqlite(path, rows_of(MODEL, built=DAY))
    write_checksums([path], folder)
    return path


@pytest.fixture
def site(published: Path) -> Iterator[str]:
    """The address of the published folder on a server on this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(published.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def update(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["index", "update", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def has_model() -> bool:
    return any(entry.id == MODEL for entry in read_index().entries)


def test_file_with_checksums_is_merged(
    published: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(read_index().entries)
    code, out, err = update(capsys, str(published))
    assert (code, err) == (0, "")
    assert out.startswith(f"index of {DAY}: 1 models added, 0 changed, ")
    assert f"added: {MODEL}" in out
    assert has_model()
    assert len(read_index().entries) == before + 1
    assert index_problem() is None
    assert sorted(path.name for path in data_folder.iterdir()) == ["index.lock", "index.sqlite"]
    again = update(capsys, str(published), "--json")
    answer = json.loads(again[1])["index"]
    assert (answer["added"], answer["changed"], answer["published"]) == ([], [], DAY)
    assert answer["sha256"] == hashlib.sha256(published.read_bytes()).hexdigest()


def test_merged_model_can_be_estimated_and_listed(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    update(capsys, str(published))
    assert main(["index", "show", MODEL, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["geometry"] == "exact"
    assert [row["name"] for row in answer["repositories"]] == [f"maker/{MODEL}-GGUF"]


NEW = "zeta-9b"


def rows_with_scores(*scores: tuple[str, float]) -> dict[str, list[Row]]:
    """An index with a new model that has Qwen3 8B's layers, and these scores."""
    rows = rows_of(NEW, built=DAY)
    columns = [column.name for column in table_named("models").columns]
    like = packaged_file().entries("WHERE m.id = 'qwen3-8b'")[0]
    facts = {name: getattr(like, name) for name in FACTS_OF_GEOMETRY}
    facts |= {"kinds": "chat", "released": "2026-11-01", "uses": 2.0}
    values = dict(zip(columns, rows["models"][0], strict=True)) | facts
    rows["models"] = [tuple(values[name] for name in columns)]
    query = "SELECT id, fingerprint, header, sizes, forms FROM geometries WHERE id = ?"
    (geometry,) = packaged_file().rows(query, (like.geometry,))
    rows["geometries"] = [(3, *geometry[1:])]
    rows["evidence"] = [
        (NEW, benchmark, score, "2026-11-02", "", "Example Lab", 7) for benchmark, score in scores
    ]
    return rows


def recommend_json(capsys: pytest.CaptureFixture[str], *argv: str) -> list[Any]:
    assert main(["recommend", "--device", "RTX 4070", "--ram", "32G", "--json", *argv]) == 0
    suggestions: list[Any] = json.loads(capsys.readouterr().out)["suggestions"]
    return suggestions


def test_scores_of_an_updated_index_rank_its_models_and_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = recommend_json(capsys, "--task", "code")
    write_sqlite(
        tmp_path / "index.sqlite", rows_with_scores(("LiveCodeBench", 84.0), ("SciCode", 45.0))
    )
    write_checksums([tmp_path / "index.sqlite"], tmp_path)
    assert update(capsys, str(tmp_path / "index.sqlite"))[0] == 0
    after = recommend_json(capsys, "--task", "code")
    (new,) = (found for found in after if found["id"] == NEW)
    assert new["quality"]["basis"] == "measured"
    assert [score["score"] for score in new["quality"]["scores"]] == [84.0, 45.0]
    others = [(found["id"], found["worth"]) for found in after if found is not new]
    assert others == [(found["id"], found["worth"]) for found in before[: len(others)]]
    main(["recommend", "--device", "RTX 4070", "--ram", "32G", "--task", "code", "--why"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "LiveCodeBench 84 (2026-11, measured by Example Lab; org/repo)" in printed


def test_url_is_merged(
    site: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert update(capsys, f"{site}/index.sqlite")[0] == 0
    assert has_model()
    assert update(capsys, f"{site}/nothing.sqlite", "--sha256", "0" * 64)[0] == 4
    monkeypatch.setenv("EDGEKIT_INDEX_URL", f"{site}/index.sqlite")
    assert "0 models added" in update(capsys)[1]
    code, out, err = update(capsys, "--offline")
    assert (code, out) == (4, "")
    assert "network is off" in err


def test_user_and_password_of_an_address_are_not_shown(
    site: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"{site.replace('http://', 'http://me:secret@')}/index.sqlite?key=secret"
    code, out, err = update(capsys, address)
    assert "secret" not in out + err
    assert code in {0, 2, 4}


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("--sha256", "0" * 64), 5, "its SHA-256 is"),
        (("--sha256", "abc"), 2, "64 hexadecimal digits"),
        (("--signers", "/nonexistent"), 5, "no signature (.sig) next to it"),
        (("--from", "https://example.org/index.sqlite"), 2, "name two indexes"),
    ],
)
def test_unverified_file_changes_nothing(
    argv: tuple[str, ...],
    code: int,
    message: str,
    published: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result, out, err = update(capsys, str(published), *argv)
    assert (result, out) == (code, "")
    assert message in err
    assert not has_model()


def test_checksum_is_required(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (published.parent / "SHA256SUMS").write_text(f"{'0' * 64}  other.sqlite\n")
    code, _, err = update(capsys, str(published))
    assert code == 2
    assert "give --sha256" in err
    digest = hashlib.sha256(published.read_bytes()).hexdigest()
    published.with_name("index.sqlite.sha256").write_text(f"{digest}\n")
    assert update(capsys, str(published))[0] == 0


def test_unprotected_address_needs_more_than_a_checksum_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = update(capsys, "http://example.org/index.sqlite", "--offline")
    assert code == 2
    assert "use https://" in err


def test_damaged_file_with_a_right_checksum_is_refused(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published.write_bytes(b"no index")
    write_checksums([published], published.parent)
    code, _, err = update(capsys, str(published))
    assert code == 5
    assert "not a readable index" in err
    assert not has_model()


def test_file_that_is_too_large_is_refused(
    published: Path, site: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_update, "MAX_FILE_BYTES", published.stat().st_size - 1)
    for address in (str(published), f"{site}/index.sqlite"):
        code, _, err = update(capsys, address)
        assert code in {4, 5}
        assert f"{published.stat().st_size - 1:,}" in err
    assert not has_model()


def test_index_of_the_future_is_refused(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would stay newer than every index that EdgeKit will ever have."""
    write_sqlite(published, rows_of(MODEL, built="9999-12-31"))
    write_checksums([published], published.parent)
    code, _, err = update(capsys, str(published))
    assert code == 5
    assert "check this machine's clock" in " ".join(err.split())
    assert not has_model()


def test_index_cannot_take_a_known_model_away(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def scores() -> list[tuple[object, ...]]:
        query = "SELECT benchmark, score FROM evidence WHERE model = ? ORDER BY 1, 2"
        return index_file().rows(query, ("qwen3-32b",))

    before = scores()
    rows = rows_of("foo-32b", built=DAY)
    rows["models"] = [(row[0], "Qwen/Qwen3-32B", *row[2:]) for row in rows["models"]]
    rows["evidence"] = []
    write_sqlite(published, rows)
    write_checksums([published], published.parent)
    code, out, _ = update(capsys, str(published), "--json")
    merged = json.loads(out)["index"]
    assert code == 0
    assert (merged["added"], merged["changed"], merged["removed"]) == ([], ["qwen3-32b"], [])
    assert scores() == before != []
    assert main(["index", "show", "qwen3-32b", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["licence"] == "mit"  # what the newer index states
    assert len(shown["repositories"]) > 5  # what it does not state


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")
def test_signature_is_checked(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def key(name: str) -> Path:
        path = tmp_path / name
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
        subprocess.run(command, check=True, timeout=PATIENCE_S)
        return path

    ours, other = key("ours"), key("other")
    signers = tmp_path / "allowed_signers"
    signers.write_text(f"us@example.org {ours.with_suffix('.pub').read_text()}")
    for signing, code in ((ours, 0), (other, 5)):
        published.with_name("index.sqlite.sig").unlink(missing_ok=True)
        sign = ["ssh-keygen", "-q", "-Y", "sign", "-n", "edgekit-index", "-f", str(signing)]
        subprocess.run([*sign, str(published)], check=True, timeout=PATIENCE_S)
        result, out, err = update(capsys, str(published), "--signers", str(signers))
        assert result == code, err
        assert ("signed by us@example.org" in " ".join(out.split())) is (code == 0)
        assert ("its signature matches no key" in err) is (code == 5)


UPDATE = [sys.executable, "-m", "edgekit", "index", "update"]


def test_updates_at_the_same_time_all_succeed(published: Path) -> None:
    running = [subprocess.Popen([*UPDATE, str(published)]) for _ in range(3)]
    assert [process.wait(timeout=PATIENCE_S) for process in running] == [0, 0, 0]
    assert has_model()


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_update_leaves_the_old_index(
    published: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed once it has begun to write: the temporary folder is there."""
    update(capsys, str(published))
    before = (data_folder / "index.sqlite").read_bytes()
    write_sqlite(published, rows_of(MODEL, "second-test-model", built=DAY))
    write_checksums([published], published.parent)
    with subprocess.Popen([*UPDATE, str(published)]) as process:
        while not list(data_folder.glob("*.part")) and process.poll() is None:
            pass
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=PATIENCE_S)
    assert process.returncode in {0, -signal.SIGKILL}
    if process.returncode:
        assert (data_folder / "index.sqlite").read_bytes() == before
    assert has_model()
    assert update(capsys, str(published))[0] == 0
    assert any(entry.id == "second-test-model" for entry in read_index().entries)
    assert not list(data_folder.glob("*.part"))


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("https://", 2, "only https://, http:// and paths"),
        ("http://[::1", 2, "only https://, http:// and paths"),
        ("https://example.com:99999/index.sqlite", 2, "only https://, http:// and paths"),
        ("ftp://example.com/index.sqlite", 2, "only https://, http:// and paths"),
        ("nothere.sqlite", 4, "no such file or folder: nothere.sqlite"),
        ("~no-such-user/index.sqlite", 4, "no such file or folder: ~no-such-user"),
    ],
)
def test_address_that_is_none_is_one_line_and_an_exit_code(
    address: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "update", address]) == code
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) == 1


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write")
def test_data_folder_that_cannot_be_written_is_one_line(
    published: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEKIT_DATA", "/proc")
    assert main(["index", "update", str(published)]) == 4
    shown = capsys.readouterr().err
    assert "cannot write to /proc" in shown
    assert "set EDGEKIT_DATA to another folder" in shown
    assert len(shown.splitlines()) == 1
