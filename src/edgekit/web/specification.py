"""The OpenAPI document, made once in advance: FastAPI needs most of a second for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from edgekit.web.assets import Asset, asset_of


class Specification:
    """The serialised document. The first request makes it; others wait for that."""

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._document: Asset | None = None

    def document(self) -> Asset:
        with self._lock:
            if self._document is None:
                text = json.dumps(self._make(), ensure_ascii=False, separators=(",", ":"))
                self._document = asset_of(text.encode(), "application/json")
            return self._document
