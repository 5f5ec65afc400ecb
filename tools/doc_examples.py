"""Run the examples of README.md and docs/ and write their present output.

    python tools/doc_examples.py          # rewrite
    python tools/doc_examples.py --check  # only list pages that differ; exit code 1 if any does

An example is a command in backquotes with a text block below it, or a row of docs/data/setups.tsv: a command, its
headline, a remark. All of them name a machine.
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

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = re.compile(r"`(edgekit [^`\n]+)`\n\n```text\n(.*?)```", re.DOTALL)
ROW = re.compile(r"^(edgekit check [^\t\n]+)\t[^\t\n]*\t", re.MULTILINE)


def main() -> int:
    """Return 1 if an example was out of date."""
    changed = 0
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):  # share writes files
        os.environ |= {"COLUMNS": "100", "HOME": home, "XDG_CACHE_HOME": home, "HF_HOME": home}
        os.environ["EDGEKIT_LLAMA_VERSION"] = "0.6"  # whatever is installed
        platform.machine = lambda: "x86_64"  # weights are repacked for the CPU type
        docs = ROOT / "docs"
        for page in (ROOT / "README.md", *sorted(docs.rglob("*.md")), docs / "data" / "setups.tsv"):
            before = page.read_text(encoding="utf-8")
            change = (ROW, _row) if page.suffix == ".tsv" else (EXAMPLE, _example)
            after = change[0].sub(change[1], before)
            if after != before:
                changed += 1
                print(page.relative_to(ROOT))
                if "--check" not in sys.argv:
                    page.write_text(after, encoding="utf-8")
    return int(bool(changed))


def _example(match: re.Match[str]) -> str:
    return f"`{match[1]}`\n\n```text\n{_output_of(match[1])}```"


def _row(match: re.Match[str]) -> str:
    return f"{match[1]}\t{' '.join(_output_of(f'{match[1]} --quiet').split())}\t"


def _output_of(command: str) -> str:
    from edgekit.cli import main as edgekit

    out = io.TextIOWrapper(
        io.BytesIO(), encoding="utf-8"
    )  # the encoding decides how bars are drawn
    with contextlib.redirect_stdout(out):
        edgekit(shlex.split(command)[1:])
    out.seek(0)
    return out.read()


if __name__ == "__main__":
    sys.exit(main())
