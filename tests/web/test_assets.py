"""The page's files as they are sent: addresses with a hash, caching, compression, scripts fetched in advance."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from tests.web.serving import ask, start

from edgekit.web.app import FOREVER, OPENAPI, PAGES
from edgekit.web.assets import FOLDER, STYLE_SHEET, TEMPLATE, imported, page_files
from edgekit.web.compression import MIN_BYTES, THREAD_BYTES, Compression, accepts_gzip

GZIP = {"Accept-Encoding": "gzip, deflate, br"}
MAX_LINE_CHARS = 120
SOURCES = sorted(path for path in FOLDER.iterdir() if path.suffix in {".js", ".css", ".html"})


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with start() as address:
        yield address


def addresses(html: str) -> list[str]:
    return re.findall(r'(?:href|src)="(/static/[^"]*)"', html)


def preloads(path: str) -> list[str]:
    """The names of the scripts that the browser fetches in advance on this page."""
    html = page_files().document(path).content.decode()
    return re.findall(r'rel="modulepreload" href="/static/\w+/([\w.-]+)"', html)


class TestAddresses:
    def test_every_file_of_the_page_has_the_hash_and_may_be_kept(self, server: str) -> None:
        found = addresses(ask(server, "/").body.decode())
        assert len(found) > 4
        for path in found:
            assert path.startswith(f"/static/{page_files().hash}/")
            answer = ask(server, path)
            assert (answer.status, answer.headers["cache-control"]) == (200, FOREVER)

    @pytest.mark.parametrize("version", ["0" * 16, "x", "..", "%2e%2e"])
    def test_file_of_another_version_is_not_found(self, server: str, version: str) -> None:
        assert ask(server, f"/static/{version}/main.js").status == 404

    @pytest.mark.parametrize(
        "name", ["app.py", "..%2fapp.py", "MAIN.JS", "index.html", "", "a" * 900]
    )
    def test_name_that_is_not_a_file_of_the_page_is_not_found(self, server: str, name: str) -> None:
        assert ask(server, f"/static/{page_files().hash}/{name}").status == 404

    def test_page_itself_is_revalidated(self, server: str) -> None:
        first = ask(server, "/")
        assert first.headers["cache-control"] == "no-cache"
        again = ask(server, "/", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")

    def test_any_change_changes_the_hash(self, tmp_path: Path) -> None:
        (tmp_path / TEMPLATE).write_text('<script type="module" src="/static/main.js"></script>')
        (tmp_path / "main.js").write_text("// one\n")
        (tmp_path / "notes.txt").write_text("not a file of the page")
        before = page_files(tmp_path)
        assert set(before.files) == {"main.js", STYLE_SHEET}
        page_files.cache_clear()
        (tmp_path / "main.js").write_text("// two\n")
        assert page_files(tmp_path).hash != before.hash
        page_files.cache_clear()

    def test_style_sheets_are_sent_as_one_file(self) -> None:
        html = page_files().document("/").content.decode()
        names = re.findall(
            r'rel="stylesheet" href="/static/(\S+)"', (FOLDER / TEMPLATE).read_text()
        )
        assert len(names) > 1
        assert html.count('rel="stylesheet"') == 1
        joined = b"\n".join((FOLDER / name).read_bytes() for name in names)
        assert page_files().files[STYLE_SHEET].content == joined


class TestPreloads:
    def test_imports_are_found_in_every_form(self) -> None:
        scripts = {
            "a.js": 'import "./b.js";\nimport {\n  one,\n  two,\n} from "./c.js";\nexport { x } from "./d.js";\n'
            'const later = () => import("./z.js");\n// import "./z.js";\nconst text = `import "./z.js"`;\n',
            "b.js": 'import d from "./d.js";\nexport const from = "./z.js";\n',
            "c.js": 'export * from "./e.js";\nimport * as all from "./a.js";\n',
        }
        assert imported(scripts, ["a.js"]) == ("a.js", "b.js", "c.js", "d.js", "e.js")

    @pytest.mark.parametrize("path", PAGES)
    def test_page_preloads_what_it_needs_and_no_more(self, path: str) -> None:
        """Counted by another rule: every word `from "./NAME.js"` of the scripts that are preloaded."""
        names = {*preloads(path), "main.js"}
        assert len(names) == len(preloads(path)) + 1
        for name in names:
            text = (FOLDER / name).read_text(encoding="utf-8")
            assert set(re.findall(r'(?:from|import) "\./([\w-]+\.js)"', text)) <= names
        if path != "/":
            assert len(names) > len(preloads("/")) + 1
        elif "model.js" in names:
            pytest.fail("the home page fetches the model page's scripts in advance")


class TestCompression:
    @pytest.mark.parametrize("path", ["/", f"/static/{STYLE_SHEET}", "/static/main.js", OPENAPI])
    def test_file_is_compressed_for_a_client_that_accepts_it(self, server: str, path: str) -> None:
        plain, zipped = ask(server, path), ask(server, path, headers=GZIP)
        assert "content-encoding" not in plain.headers
        assert zipped.headers["content-encoding"] == "gzip"
        assert gzip.decompress(zipped.body) == plain.body
        assert len(zipped.body) < 0.6 * len(plain.body)
        for answer in (plain, zipped):
            assert answer.headers["vary"] == "Accept-Encoding"
            assert int(answer.headers["content-length"]) == len(answer.body)
        assert plain.headers["etag"] != zipped.headers["etag"]
        tag = {"If-None-Match": zipped.headers["etag"]}
        assert ask(server, path, headers={**GZIP, **tag}).status == 304

    @pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/v1/devices"])
    def test_head_has_the_headers_of_the_compressed_answer(self, server: str, path: str) -> None:
        head = ask(server, path, method="HEAD", headers=GZIP)
        get = ask(server, path, headers=GZIP)
        assert head.body == b""
        for name in ("content-encoding", "content-length", "vary"):
            assert head.headers[name] == get.headers[name]

    def test_call_is_compressed(self, server: str) -> None:
        plain, zipped = (ask(server, "/api/v1/devices", headers=item) for item in ({}, GZIP))
        assert json.loads(gzip.decompress(zipped.body)) == plain.json()
        assert zipped.headers["cache-control"] == "no-store"

    def test_event_stream_is_not_compressed(self, server: str) -> None:
        job = ask(server, "/api/v1/jobs/estimate", {"model": "qwen3-8b"}).json()
        answer = ask(server, f"/api/v1/jobs/{job['id']}/events", headers=GZIP)
        assert b"event: done" in answer.body
        assert len(answer.body) > MIN_BYTES
        assert not {"content-encoding", "vary"} & answer.headers.keys()

    @pytest.mark.parametrize(
        ("header", "accepted"),
        [
            ("gzip", True),
            ("br, GZIP ;q=0.5", True),
            ("*", True),
            ("", False),
            ("identity", False),
            ("gzip;q=0", False),
            ("gzip; q=0.000, *", False),
            ("*;q=0", False),
            ("xgzip", False),
            (",;q=,=", False),
        ],
    )
    def test_accept_encoding(self, header: str, *, accepted: bool) -> None:
        assert accepts_gzip(header) == accepted

    def test_what_is_compressed(self) -> None:
        """Whole text answers from MIN_BYTES on; also those that a thread compresses."""

        def answer(request: Request) -> Response:
            size = int(request.query_params["size"])
            match request.path_params["kind"]:
                case "json":
                    return JSONResponse("a" * (size - 2), headers={"ETag": '"x"'})
                case "svg":
                    return Response("a" * size, media_type="image/svg+xml")
                case "png":
                    return Response("a" * size, media_type="image/png")
                case "zipped":
                    return JSONResponse("a" * size, headers={"Content-Encoding": "br"})
            return StreamingResponse(iter(["a" * size] * 2), media_type="text/html")

        client = TestClient(Compression(Starlette(routes=[Route("/{kind}", answer)])))

        def encoding(kind: str, size: int) -> str | None:
            reply = client.stream("GET", f"/{kind}?size={size}", headers=GZIP)
            with reply as response:
                found: str | None = response.headers.get("content-encoding")
                return found

        assert encoding("json", MIN_BYTES) == encoding("svg", THREAD_BYTES * 3) == "gzip"
        assert encoding("json", MIN_BYTES - 1) is None
        assert encoding("png", MIN_BYTES) is None
        assert encoding("zipped", MIN_BYTES) == "br"
        assert encoding("stream", MIN_BYTES) is None
        reply = client.get(f"/json?size={THREAD_BYTES}", headers=GZIP)
        assert (reply.json(), reply.headers["etag"]) == ("a" * (THREAD_BYTES - 2), 'W/"x"')


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_line_is_longer_than_the_limit(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    long = [number for number, line in enumerate(lines, 1) if len(line) > MAX_LINE_CHARS]
    assert not long, f"{path.name}: lines {long} have more than {MAX_LINE_CHARS} characters"


def test_style_sheets_use_only_properties_that_they_define() -> None:
    """A misspelled var(--name) is no error for a browser: it silently drops the declaration."""
    style = "".join(path.read_text(encoding="utf-8") for path in SOURCES if path.suffix == ".css")
    scripts = "".join(path.read_text(encoding="utf-8") for path in SOURCES if path.suffix == ".js")
    defined = set(re.findall(r"(--[\w-]+)\s*:", style)) | set(re.findall(r'"(--[\w-]+)"', scripts))
    assert set(re.findall(r"var\(\s*(--[\w-]+)\s*\)", style)) <= defined
    assert "@import" not in style  # it would have to come first in the joined file


def test_every_import_names_a_file() -> None:
    for path in SOURCES:
        for name in re.findall(
            r'(?:from|import\(?)\s*"\./([^"]+)"', path.read_text(encoding="utf-8")
        ):
            assert (FOLDER / name).is_file(), f"{path.name} imports {name}"
