"""`index build` against nginx with 300 synthetic repositories, and against hubs that are hostile."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from synthetic_hub import FAULTS, SyntheticHub, serve_hub, write_hub
from tests.hub.hub_files import gguf_header, split_header
from tests.hub.raw_server import RawServer, Request, Script, Send, range_response, response
from tests.patience import PATIENCE_S
from tests.thoroughness import wide

from edgekit.app.crawl import build as build_module
from edgekit.app.crawl import fetch, geometry, listing
from edgekit.app.crawl.build import build
from edgekit.app.crawl.on_ray import fetch_shard
from edgekit.app.crawl.types import BuildOptions, BuildReport, FetchTask, Status, TaskKind
from edgekit.cli import main
from edgekit.errors import CancelledError, RemoteBusyError, RemoteInspectError, UsageError
from edgekit.index.database import PACKAGED, IndexFile
from edgekit.index.merge import check_index, merge
from edgekit.index.records import is_id
from edgekit.index.tables import TABLES, read_rows, table_named
from edgekit.sources import async_http

REPOSITORIES = 300
DATE = "2026-11-18"
Serve = Callable[[Script], RawServer]

# Builds in a process of its own, and prints a line for each step of its progress.
CHILD = """
import sys
from pathlib import Path
from edgekit.app.crawl import fetch
from edgekit.app.crawl.build import build
from edgekit.app.crawl.types import BuildOptions
fetch.BATCH = 16
ray = sys.argv[2] or None
build(BuildOptions(folder=Path(sys.argv[1]), date="2026-11-18", ray=ray, workers=2 if ray else None,
                   progress=lambda line: print(line, flush=True)))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed (Debian: apt install nginx-light)")
    root = tmp_path_factory.mktemp("synthetic")
    write_hub(root, REPOSITORIES, shapes=4, per_page=100, seed=3)
    return root


@pytest.fixture(scope="module")
def served(files: Path) -> Iterator[SyntheticHub]:
    quick = {fault: 2 * percent for fault, percent in FAULTS.items() if fault != "slow"}
    with serve_hub(files, faults=quick) as hub:
        yield hub


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_http, "FIRST_PAUSE_S", 0.001)


@pytest.fixture
def hub(served: SyntheticHub, monkeypatch: pytest.MonkeyPatch) -> SyntheticHub:
    monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
    return served


@pytest.fixture(scope="module")
def undisturbed(
    served: SyntheticHub, tmp_path_factory: pytest.TempPathFactory
) -> tuple[BuildReport, dict[str, str]]:
    """The report of an ordinary build, and the hashes of its files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", served.endpoint)
        patch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
        report = run(tmp_path_factory.mktemp("undisturbed"))
    return report, hashes(report.folder)


def run(folder: Path, **options: Any) -> BuildReport:
    return build(BuildOptions(folder=folder, date=DATE, **options))


def problems_of(folder: Path) -> list[tuple[str, str, str]]:
    """Repository, status and detail."""
    return [tuple(row.values()) for row in pq.read_table(folder / "problems.parquet").to_pylist()]


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file but the journal."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if not path.name.startswith("journal")
    }


def child(hub: SyntheticHub, folder: Path, ray: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "RAY_DEDUP_LOGS": "0"}
    command = [sys.executable, "-c", CHILD, str(folder), ray]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


# -- what is built -------------------------------------------------------------------------------


def test_every_repository_is_in_the_index_or_has_a_reason(
    undisturbed: tuple[BuildReport, dict[str, str]],
) -> None:
    report, _ = undisturbed
    index = report.folder / "index.sqlite"
    rows = list(read_rows(index, table_named("repositories")))
    problems = problems_of(report.folder)
    models = {row[0]: row for row in read_rows(index, table_named("models"))}
    named = {row[2] for row in rows} | {row[0] for row in problems}
    assert report.repositories == REPOSITORIES == len(named)
    assert {row[0] for row in rows} <= set(models)
    assert len({str(name).lower() for name in models}) == len(models)
    geometries = {row[0] for row in read_rows(index, table_named("geometries"))}
    assert {row[15] for row in models.values()} - {None} == geometries


def test_geometries_are_read_once_and_sizes_are_known(
    undisturbed: tuple[BuildReport, dict[str, str]],
) -> None:
    report, _ = undisturbed
    assert report.geometries <= 8  # of 4 configs and 4 headers
    assert report.requests < 1.2 * REPOSITORIES
    rows = list(read_rows(report.folder / "index.sqlite", table_named("repositories")))
    quantised = [json.loads(str(row[3])) for row in rows if row[1] == "gguf"]
    assert quantised
    assert all(
        set(quants) == {"Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"} for quants in quantised
    )
    assert all(size > 0 for quants in quantised for size in quants.values())
    assert {row[1] for row in rows} == {"original", "gguf", "mlx", "awq", "gptq", "fp8", "nvfp4"}


def test_gated_and_missing_files_are_recorded(
    undisturbed: tuple[BuildReport, dict[str, str]], files: Path
) -> None:
    report, _ = undisturbed
    index = report.folder / "index.sqlite"
    gated = {f"{path.parent.name}/{path.name}" for path in (files / "www/gated").glob("*/*")}
    status = {row[0]: row[1] for row in problems_of(report.folder)}
    models = {row[1]: row for row in read_rows(index, table_named("models"))}
    assert gated
    for name in gated:  # a quantisation may have told its geometry
        model = models[name]
        assert (model[15] is None) == (status.get(name) == "gated")
        assert model[16] == "assumed"


def test_geometry_opens_as_the_model_of_its_config(
    undisturbed: tuple[BuildReport, dict[str, str]],
) -> None:
    """A header of the index is rebuilt to the geometry that the index states."""
    import zlib

    from edgekit.model import open_config

    report, _ = undisturbed
    index = report.folder / "index.sqlite"
    headers = {row[0]: row for row in read_rows(index, table_named("geometries"))}
    checked = 0
    for row in read_rows(index, table_named("models")):
        header = headers.get(row[15])
        if header is None or header[4] != "config":
            continue
        config = json.loads(zlib.decompress(bytes(header[2])))["config"]  # type: ignore[arg-type] # a BLOB
        geometry = open_config(config).model.geometry
        assert (geometry.architecture, geometry.native_context) == (row[5], row[8])
        checked += 1
    assert checked > 10


def test_checksums_and_parquet_of_every_table(
    undisturbed: tuple[BuildReport, dict[str, str]],
) -> None:
    report, found = undisturbed
    lines = (report.folder / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1]: line.split("  ")[0] for line in lines} == {
        name: digest for name, digest in found.items() if name != "SHA256SUMS"
    }
    for table in TABLES:
        parquet = pq.read_table(report.folder / f"{table.name}.parquet")
        assert parquet.num_rows == report.rows[table.name]


def test_duckdb_answers_questions_over_the_parquet_files(
    undisturbed: tuple[BuildReport, dict[str, str]],
) -> None:
    if find_spec("duckdb") is None:
        pytest.skip("duckdb is not installed")
    report, _ = undisturbed
    query = f"""SELECT r.form, count(*), max(json_extract(r.quants, '$.Q4_K_M')::BIGINT)
      FROM '{report.folder}/models.parquet' m JOIN '{report.folder}/repositories.parquet' r ON r.model = m.id
      GROUP BY r.form ORDER BY r.form"""
    # In a process of its own: DuckDB's bindings write to standard error when Python ends.
    script = "import duckdb, json, sys; print(json.dumps(duckdb.sql(sys.argv[1]).fetchall()))"
    output = subprocess.run(
        [sys.executable, "-c", script, query], check=True, capture_output=True, text=True
    ).stdout
    answer = json.loads(output)
    rows = list(read_rows(report.folder / "index.sqlite", table_named("repositories")))
    for form, count, largest in answer:
        quants = [json.loads(str(row[3])) for row in rows if row[1] == form]
        assert count == len(quants)
        sizes = [item["Q4_K_M"] for item in quants if "Q4_K_M" in item]
        assert largest == max(sizes, default=None)
    assert sum(count for _, count, _ in answer) == len(rows)


# -- always the same bytes -----------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 64])
def test_number_of_connections_does_not_change_the_bytes(
    hub: SyntheticHub,
    undisturbed: tuple[BuildReport, dict[str, str]],
    tmp_path: Path,
    at_once: int,
) -> None:
    del hub
    run(tmp_path, at_once=at_once)
    assert hashes(tmp_path) == undisturbed[1]


def test_build_that_is_killed_five_times_ends_with_the_same_bytes(
    hub: SyntheticHub, undisturbed: tuple[BuildReport, dict[str, str]], tmp_path: Path
) -> None:
    """Killed in the listing, in the file lists and in the geometries: after 1, 2, 3, 4 and 5 lines of progress."""
    for lines in range(1, 6):
        with child(hub, tmp_path) as process:
            assert process.stdout is not None
            for _ in range(lines):
                assert process.stdout.readline(), "it finished before it could be killed"
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (tmp_path / "SHA256SUMS").exists()
    report = run(tmp_path)
    assert hashes(tmp_path) == undisturbed[1]
    assert report.requests < undisturbed[0].requests  # what was fetched is not fetched again


def test_finished_build_is_written_again_without_requests(
    hub: SyntheticHub, undisturbed: tuple[BuildReport, dict[str, str]], tmp_path: Path
) -> None:
    del hub
    run(tmp_path)
    again = build(BuildOptions(folder=tmp_path, date="2030-01-01"))  # it keeps its date
    assert again.requests == 0
    assert hashes(tmp_path) == undisturbed[1]


@wide  # a cluster takes 20 CPU seconds to start
def test_ray_gives_the_same_bytes(
    hub: SyntheticHub, undisturbed: tuple[BuildReport, dict[str, str]], tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    with child(hub, tmp_path, "local") as process:
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert hashes(tmp_path) == undisturbed[1]


def test_faults_do_not_change_the_bytes(
    undisturbed: tuple[BuildReport, dict[str, str]],
    served: SyntheticHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hub fails 9 of 100 requests; the address of the hub is the same as that of the undisturbed build."""
    monkeypatch.setattr(async_http, "MAX_RETRY_AFTER_S", 0.01)
    served.set_faults(drawn=True)
    try:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        report = run(tmp_path)
    finally:
        served.set_faults(drawn=False)
    assert report.faults
    assert hashes(tmp_path) == undisturbed[1]


def test_folder_with_another_crawl_needs_restart(hub: SyntheticHub, tmp_path: Path) -> None:
    del hub
    run(tmp_path, limit=5)
    with pytest.raises(UsageError, match="--restart"):
        run(tmp_path, limit=6)
    assert run(tmp_path, limit=6, restart=True).repositories == 6


def test_cancelled_build_continues(
    hub: SyntheticHub, undisturbed: tuple[BuildReport, dict[str, str]], tmp_path: Path
) -> None:
    del hub
    import threading

    cancelled = threading.Event()

    def progress(line: str) -> None:
        if line.startswith("file lists"):
            cancelled.set()

    with pytest.raises(CancelledError):
        run(tmp_path, progress=progress, cancelled=cancelled)
    run(tmp_path)
    assert hashes(tmp_path) == undisturbed[1]


# -- hubs that do not play by the rules ----------------------------------------------------------


@pytest.fixture
def hostile(raw_server: Serve, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Starts a server and makes it the hub."""

    def start(script: Script) -> RawServer:
        server = raw_server(script)
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        return server

    return start


def page(entries: object, following: str = "", *, more: dict[str, str] | None = None) -> bytes:
    headers = {"Link": f'<{following}>; rel="next"'} if following else {}
    return response("200 OK", {**headers, **(more or {})}, json.dumps(entries).encode())


def test_listing_that_repeats_itself_ends(hostile: Serve, tmp_path: Path) -> None:
    def script(_: Request, send: Send) -> None:
        send(page([{"id": "a/b", "siblings": []}], "/api/models?cursor=1"))

    server = hostile(script)
    assert run(tmp_path).repositories == 1
    assert len(server.requests) == 1 + listing.MAX_STALE_PAGES


def test_endless_listing_is_an_error(
    hostile: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "MAX_PAGES", 7)

    def script(request: Request, send: Send) -> None:
        entry = {"id": f"a/b{request.number}", "siblings": []}
        send(page([entry], f"/api/models?cursor={request.number}"))

    server = hostile(script)
    with pytest.raises(RemoteInspectError, match="more than 7 pages"):
        run(tmp_path)
    assert len(server.requests) == 7


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (response("200 OK", body=b"<html>"), "not JSON"),
        (page({"error": "x"}), "not a list"),
        (page([{"id": "a/b"}], "http://127.0.0.2:9/next"), "another host"),
        (response("401 Unauthorized"), "private or gated"),
        (response("500 Internal Server Error"), "500"),
        (page(["x" * 3000]), "longer than 2,000 bytes"),
    ],
)
def test_listing_that_cannot_be_read_is_an_error(
    hostile: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, message: str
) -> None:
    monkeypatch.setattr(listing, "MAX_PAGE_BYTES", 2_000)
    hostile(lambda _, send: send(answer))
    with pytest.raises(RemoteInspectError, match=message):
        run(tmp_path)


def test_malformed_entries_are_recorded(hostile: Serve, tmp_path: Path) -> None:
    entries = [3, {"id": "../../etc/passwd"}, {"id": "a/b", "siblings": [{"rfilename": "x.bin"}]}]
    hostile(lambda _, send: send(page(entries)))
    report = run(tmp_path)
    assert (report.models, report.repositories) == (0, 1)
    assert report.problems == {"invalid": 2, "not a model": 1}


GGUF_ENTRY = {"id": "a/b", "siblings": [{"rfilename": "b.Q4_K_M.gguf", "size": 9_000_000}]}
CONFIG_ENTRY = {
    "id": "a/b",
    "siblings": [{"rfilename": "config.json"}, {"rfilename": "model.safetensors", "size": 9}],
}


@pytest.mark.parametrize(
    ("entry", "answer", "status"),
    [
        (GGUF_ENTRY, response("206 Partial Content", {"Content-Range": "bytes 0-3/9"}, b"GGUF"), "unreadable"),
        (GGUF_ENTRY, response("206 Partial Content", {"Content-Range": "bytes 5-9/9"}, b"GGUF"), "unreadable"),
        (GGUF_ENTRY, response("200 OK", {"Content-Type": "text/html"}, b"<html>"), "unreadable"),
        (GGUF_ENTRY, response("200 OK", body=b"GGUF" + b"\xff" * 40), "unreadable"),
        (GGUF_ENTRY, response("200 OK", body=b""), "unreadable"),
        (GGUF_ENTRY, response("403 Forbidden"), "gated"),
        (GGUF_ENTRY, response("404 Not Found"), "missing"),
        (CONFIG_ENTRY, page([1, 2]), "unreadable"),
        (CONFIG_ENTRY, page({"model_type": "llama", "hidden_size": "x" * 10}), "unreadable"),
        (CONFIG_ENTRY, response("200 OK", body=b'{"a":' * 500 + b"1" + b"}" * 500), "unreadable"),
        (CONFIG_ENTRY, response("200 OK", body=b'{"a": NaN, "model_type": 3}'), "unreadable"),
        (CONFIG_ENTRY, response("302 Found", {"Location": "http://[::1"}), "unreadable"),
        (CONFIG_ENTRY, response("401 Unauthorized"), "gated"),
        (CONFIG_ENTRY, response("410 Gone"), "missing"),
    ],
)  # fmt: skip
def test_file_that_cannot_be_read_is_recorded_and_the_build_goes_on(
    hostile: Serve, tmp_path: Path, entry: dict[str, Any], answer: bytes, status: str
) -> None:
    def script(request: Request, send: Send) -> None:
        send(page([entry]) if "/api/" in request.line else answer)

    hostile(script)
    report = run(tmp_path)
    assert report.problems == {status: 1}
    assert (report.models, report.geometries) == (1, 0)


def test_fault_of_ours_in_one_repository_does_not_stop_the_build(
    hostile: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(geometry, "describe", broken)
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 128, "vocab_size": 1000}  # fmt: skip
    hostile(lambda request, send: send(page([CONFIG_ENTRY] if "/api/" in request.line else config)))
    assert run(tmp_path).problems == {"unreadable": 1}
    ((_, _, detail),) = problems_of(tmp_path)
    assert "ZeroDivisionError" in str(detail)


def test_repository_that_cannot_be_reached_is_read_by_the_next_build(
    hostile: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_http, "MAX_FAILURES", 2)
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 2048,
    }  # fmt: skip
    is_down = True

    def script(request: Request, send: Send) -> None:
        if "/api/" in request.line:
            send(page([CONFIG_ENTRY]))
        else:
            send(response("503 Service Unavailable") if is_down else page(config))

    hostile(script)
    report = run(tmp_path)
    assert report.problems == {"unreachable": 1}
    is_down = False
    report = run(tmp_path)
    assert report.problems == {}
    assert (report.models, report.geometries) == (1, 1)


def test_hub_that_goes_down_stops_the_build_and_keeps_what_was_read(
    hostile: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_http, "MAX_FAILURES", 1)
    monkeypatch.setattr(fetch, "MAX_UNREACHABLE", 5)
    entries = [{**CONFIG_ENTRY, "id": f"a/b{number}"} for number in range(50)]

    def script(request: Request, send: Send) -> None:
        send(page(entries) if "/api/" in request.line else response("502 Bad Gateway"))

    server = hostile(script)
    with pytest.raises(RemoteBusyError, match="kept"):
        run(tmp_path)
    assert len(server.requests) < 40
    assert (tmp_path / "journal.sqlite").exists()


def test_options_are_all_used_in_the_job_or_do_not_change_the_bytes() -> None:
    """A new option must be in the journal's job, or be known not to change the output."""
    in_job = {"author", "search", "filters", "limit", "sizes"}
    harmless = {
        "folder",
        "date",
        "restart",
        "rate",
        "at_once",
        "ray",
        "workers",
        "progress",
        "notify",
        "cancelled",
    }
    assert {field.name for field in dataclasses.fields(BuildOptions)} == in_job | harmless


# -- headers of GGUFs ----------------------------------------------------------------------------


def gguf_hub(files: dict[str, bytes]) -> Script:
    """A hub with one repository of these files, which it sends by ranges."""
    siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
    entry = {"id": "a/b", "siblings": siblings}

    def script(request: Request, send: Send) -> None:
        name = request.line.split()[1].rpartition("/")[2]
        is_file = "/resolve/" in request.line
        send(range_response(files[name], request) if is_file else page([entry]))

    return script


@pytest.mark.parametrize(
    ("vocabulary", "requests"), [(0, 1), (100_000, 2), (400_000, 3)]
)  # 2.1 and 8.4 MB
def test_header_of_a_gguf_is_read_in_few_requests(
    hostile: Serve, tmp_path: Path, vocabulary: int, requests: int
) -> None:
    header = gguf_header(vocabulary=vocabulary) + bytes(64 * 4 * 4)
    server = hostile(gguf_hub({"b.Q4_K_M.gguf": header, "b.Q8_0.gguf": header + bytes(99)}))
    report = run(tmp_path)
    assert (report.models, report.geometries, report.problems) == (1, 1, {})
    assert len(server.requests) == 1 + requests
    (model,) = read_rows(tmp_path / "index.sqlite", table_named("models"))
    assert (model[5], model[8], model[16]) == ("llama", 2048, "exact")


def test_header_in_two_shards_is_joined(hostile: Serve, tmp_path: Path) -> None:
    data = bytes(64 * 4 * 4)
    files = {f"b.Q8_0-0000{n + 1}-of-00002.gguf": split_header(n, 2) + data for n in range(2)}
    server = hostile(gguf_hub(files))
    assert run(tmp_path).geometries == 1
    assert len(server.requests) == 3


# -- the index and the command -------------------------------------------------------------------


def test_index_can_be_opened_like_the_packaged_one(
    undisturbed: tuple[BuildReport, dict[str, str]],
) -> None:
    report, _ = undisturbed
    index = IndexFile(report.folder / "index.sqlite")
    entries = index.entries()
    assert len(entries) == report.models
    for entry in entries:
        if entry.geometry is not None:
            header = index.header(entry.geometry)
            assert header.config or header.keys
            assert entry.sizes
        assert all(is_id(entry.id) for entry in entries[:5])
        assert {"repository", "uses", "family"} <= set(entry.sources)


def test_index_is_merged_by_index_update(
    undisturbed: tuple[BuildReport, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its checksum is found in SHA256SUMS next to it."""
    report, _ = undisturbed
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path))
    name = IndexFile(report.folder / "index.sqlite").entries()[0].id
    assert main(["index", "update", str(report.folder / "index.sqlite")]) == 0
    capsys.readouterr()
    assert main(["index", "show", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


ODD_FILES = {
    "a/gguf": ["b.gguf", "b (copy).gguf", "more/b.gguf", f"{'b' * 90}.gguf", "b.Q4_K_M.gguf"],
    "a/weights": ["config.json", "model.safetensors"],  # of unknown types: "as stored"
}


def test_index_of_odd_file_names_is_checked_and_merged(hostile: Serve, tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 128, "vocab_size": 1000}  # fmt: skip
    entries = [
        {"id": name, "siblings": [{"rfilename": file, "size": 9} for file in files], "downloads": 2**61}
        for name, files in ODD_FILES.items()
    ]  # fmt: skip
    hostile(lambda request, send: send(page(entries if "/api/" in request.line else config)))
    run(tmp_path)
    built = check_index(tmp_path / "index.sqlite")
    assert set(built.models.values()) == set(ODD_FILES)
    rows = read_rows(built.path, table_named("repositories"))
    assert {row[2]: row[3] for row in rows} == {"a/gguf": '{"Q4_K_M":9}', "a/weights": "{}"}
    packaged = check_index(PACKAGED)
    merged = merge([packaged, built], packaged, tmp_path / "merged.sqlite")
    assert (set(merged.added), merged.changed, merged.removed) == (set(built.models), (), ())


def test_hub_of_the_command_line_gets_no_token(
    raw_server: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    server = raw_server(lambda _, send: send(page([])))
    assert main(["index", "build", "--out", str(tmp_path), "--from", server.address]) == 0
    assert "authorization" not in server.requests[0].headers


def test_shard_on_a_worker_is_read_from_the_hub_of_the_crawl_without_a_token(
    raw_server: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    server = raw_server(lambda _, send: send(page({"siblings": []})))
    task = FetchTask(kind=TaskKind.FILES, name="a/b")
    answer = fetch_shard([task], BuildOptions(folder=tmp_path, date=DATE), server.address)
    assert isinstance(answer, tuple)
    assert [outcome.status for outcome in answer[0]] == [Status.DONE]
    assert "authorization" not in server.requests[0].headers


def test_command_reports_as_text_and_as_json(
    hub: SyntheticHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["index", "build", "--out", str(tmp_path), "--limit", "40", "--date", DATE]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")  # --from comes first
    assert main([*words, "--from", hub.endpoint]) == 0
    assert "40 repositories" in capsys.readouterr().out
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    assert main([*words, "--from", "hub", "--json", "--rate", "1000", "--at-once", "2"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["repositories"], answer["requests"]) == (40, 0)
    assert answer["rows"]["models"] == answer["models"]


def test_command_that_could_not_reach_everything_ends_with_4(
    hostile: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(async_http, "MAX_FAILURES", 1)

    def script(request: Request, send: Send) -> None:
        is_listing = "/api/" in request.line
        send(page([CONFIG_ENTRY]) if is_listing else response("503 Service Unavailable"))

    hostile(script)
    assert main(["index", "build", "--out", str(tmp_path)]) == 4
    assert "run the command again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--out"),
        (("--out", "x", "--from", "ftp"), "--from"),
        (("--out", "x", "--rate", "-1"), "--rate"),
        (("--out", "x", "--rate", "inf"), "--rate"),
        (("--out", "x", "--date", "today"), "--date"),
        (("--out", "x", "--date", "2026-02-30"), "--date"),
        (("--out", "x", "--limit", "0"), "--limit"),
        (("--out", "x", "--at-once", "999"), "--at-once"),
    ],
)
def test_command_refuses_wrong_values(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "build", *words]) == 2
    assert message in capsys.readouterr().err
