"""Without the `serve` extra: what can be imported, and what to install."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"starlette", "uvicorn", "h11", "fastapi"}:
            raise ModuleNotFoundError(f"no {name}", name=name)

sys.meta_path.insert(0, Missing())
import edgekit.gateway.models, edgekit.gateway.swap, edgekit.gateway.types
from edgekit.errors import MissingExtraError
from edgekit.server import needs_extra

try:
    with needs_extra("serve", "the server"):
        import edgekit.gateway.server
except MissingExtraError as error:
    print(error)
"""


def test_values_need_no_extra_and_the_server_names_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout == "the server needs uvicorn: pip install 'edgekit-models[serve]'\n"
