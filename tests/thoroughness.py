"""How much is tested: a fixed sample where many cases go one way, or with EDGEKIT_LONG=1 all of them."""

from __future__ import annotations

import os

LONG = os.environ.get("EDGEKIT_LONG") == "1"
