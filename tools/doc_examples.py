"""Run the examples of README.md and docs/*.md again and write what they print now.

    python tools/doc_examples.py          # rewrite
    python tools/doc_examples.py --check  # only say which differ; exit code 1 if any does

An example is a command in backquotes with a text block below it; all of them name the machine they ask about.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import re
import shlex
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"`(edgekit [^`\n]+)`\n\n```text\n(.*?)```", re.DOTALL)


def main() -> int:
    """Return 1 where an example was out of date."""
    differ = 0
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"COLUMNS": "100", "HOME": home, "XDG_CACHE_HOME": home, "HF_HOME": home}
        os.environ["EDGEKIT_LLAMA_VERSION"] = "0.6"  # whatever is installed
        platform.machine = lambda: "x86_64"  # whatever this is: what weights are rearranged for
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
            before = page.read_text(encoding="utf-8")
            after = EXAMPLE.sub(_again, before)
            if after != before:
                differ += 1
                print(page.relative_to(ROOT))
                if "--check" not in sys.argv:
                    page.write_text(after, encoding="utf-8")
    return int(bool(differ))


def _again(found: re.Match[str]) -> str:
    from edgekit.cli import main as edgekit

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # bars are drawn by the encoding
    with contextlib.redirect_stdout(out):
        edgekit(shlex.split(found[1])[1:])
    out.seek(0)
    return f"`{found[1]}`\n\n```text\n{out.read()}```"


if __name__ == "__main__":
    sys.exit(main())
