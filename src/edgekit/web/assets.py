"""The files of the page, from the package: by name only, and looked at again when they change."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

PAGES = Path(__file__).parent / "pages"
INDEX = "index.html"

# Not the system's table of types: on Windows a script may be text/plain there, and would not be run.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asset:
    version: tuple[int, int]  # when it was written, and its size
    content: bytes = field(repr=False)
    tag: str


@dataclass(slots=True)
class Assets:
    """What was read is kept; there are a few dozen."""

    folder: Path = PAGES
    _kept: dict[str, _Asset] = field(default_factory=dict, repr=False)

    def answer(self, request: Request, name: str) -> Response | None:
        """None where there is no such file."""
        asset = self._read(name)
        if asset is None:
            return None
        headers = {"ETag": asset.tag, "Cache-Control": "no-cache"}
        if asset.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(asset.content, media_type=_TYPES[Path(name).suffix], headers=headers)

    def _read(self, name: str) -> _Asset | None:
        if _NAME.fullmatch(name) is None or Path(name).suffix not in _TYPES:
            return None
        try:
            found = (self.folder / name).stat()
            version = (found.st_mtime_ns, found.st_size)
            kept = self._kept.get(name)
            if kept is None or kept.version != version:
                content = (self.folder / name).read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
                kept = self._kept[name] = _Asset(version=version, content=content, tag=tag)
        except OSError:
            return None
        return kept
