"""The files of the page as they are sent: read and compressed once, under addresses that carry a hash of all of them.

A browser may keep a file with such an address for ever, because any change to the page changes every address. The
scripts import each other by relative address (./router.js), so they stay within one version of the page.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "pages"
TEMPLATE = "index.html"
STYLE_SHEET = "page.css"  # the style sheets of the template, in its order
MAIN_SCRIPT = "main.js"
HASH_CHARS = 16

# Not mimetypes: on Windows a script may be text/plain there, and browsers would not run it.
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9]+)+")
# import "./a.js", import {...} from "./a.js", export {...} from "./a.js": from the start of a line.
_IMPORT = re.compile(
    r"""^(?:import|export)\b(?:[^"';]*?\bfrom\b)?\s*["']\./([\w-]+\.js)["']""", re.MULTILINE
)
# "/model": () => import("./model.js")
_LATER = re.compile(r"""["'](/[\w/]+)["'][^"']*\bimport\(\s*["']\./([\w-]+\.js)["']""")
_STYLE_LINK = re.compile(
    r'[ \t]*<link\s+rel="stylesheet"\s+href="/static/([\w.-]+)"\s*/?>[ \t]*\n?'
)
_MAIN_TAG = re.compile(rf'([ \t]*)<script\s+type="module"\s+src="/static/{MAIN_SCRIPT}"></script>')


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file as it is sent."""

    content_type: str
    content: bytes = field(repr=False)
    zipped: bytes | None = field(repr=False)  # None: compressing saves nothing
    tag: str  # the ETag of the content; that of the compressed content ends with -gzip


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFiles:
    """One version of the page."""

    hash: str
    files: Mapping[str, Asset] = field(repr=False)
    documents: Mapping[str, Asset] = field(
        repr=False
    )  # by the path of the page; "/" for all others

    def document(self, path: str) -> Asset:
        """The HTML of a page. It differs only in the scripts that the browser fetches in advance."""
        return self.documents.get(path, self.documents["/"])


@cache
def page_files(folder: Path = FOLDER) -> PageFiles:
    """The page in this folder. Read once per process: an update on disk takes effect at the next start."""
    contents = {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.suffix in _TYPES and _NAME.fullmatch(path.name)
    }
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    version = digest.hexdigest()[:HASH_CHARS]
    template = contents.pop(TEMPLATE).decode()
    sheets = [contents[name] for name in _STYLE_LINK.findall(template)]
    contents[STYLE_SHEET] = b"\n".join(sheets)
    scripts = {name: data.decode() for name, data in contents.items() if name.endswith(".js")}
    shared = imported(scripts, [MAIN_SCRIPT])
    preloads = {"/": shared} | {
        path: (*shared, *(name for name in imported(scripts, [module]) if name not in shared))
        for path, module in _LATER.findall(scripts[MAIN_SCRIPT])
    }
    return PageFiles(
        hash=version,
        files={
            name: asset_of(content, _TYPES[Path(name).suffix]) for name, content in contents.items()
        },
        documents={
            path: asset_of(_document(template, version, names), _TYPES[".html"])
            for path, names in preloads.items()
        },
    )


def asset_of(content: bytes, content_type: str) -> Asset:
    """The content with its compressed form."""
    zipped = gzip.compress(content, compresslevel=9, mtime=0)
    return Asset(
        content_type=content_type,
        content=content,
        zipped=zipped if len(zipped) < len(content) else None,
        tag=hashlib.sha256(content).hexdigest()[:HASH_CHARS],
    )


def imported(scripts: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    """These scripts and all that they import, also indirectly; not what they load later with import()."""
    found = dict.fromkeys(names)
    queue = list(found)
    for name in queue:  # the loop appends to it
        new = [other for other in _IMPORT.findall(scripts.get(name, "")) if other not in found]
        found.update(dict.fromkeys(new))
        queue.extend(dict.fromkeys(new))
    return tuple(found)


def _document(template: str, version: str, scripts: Iterable[str]) -> bytes:
    """The template with one style sheet, the scripts to fetch in advance, and addresses with the hash."""
    style = f'<link rel="stylesheet" href="/static/{STYLE_SHEET}">\n'
    first = _STYLE_LINK.search(template)
    position = first.start() if first else 0
    html = _STYLE_LINK.sub("", template)
    html = f"{html[:position]}    {style}{html[position:]}"
    links = "".join(
        f'\n    <link rel="modulepreload" href="/static/{name}">'
        for name in scripts
        if name != MAIN_SCRIPT
    )
    html = _MAIN_TAG.sub(lambda match: match[0] + links, html)
    return html.replace('"/static/', f'"/static/{version}/').encode()
