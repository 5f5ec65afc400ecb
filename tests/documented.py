"""The names that docs/data/json.tsv explains."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "data" / "json.tsv"
ROWS = [line.split("\t") for line in PAGE.read_text(encoding="utf-8").splitlines()[1:]]


def documented(*answers: str) -> set[str]:
    """The names in backquotes in the rows of these answers."""
    assert set(answers) <= {answer for answer, _, _ in ROWS}
    text = "\n".join(f"{names} {meaning}" for answer, names, meaning in ROWS if answer in answers)
    return set(re.findall(r"`([a-z_]+(?:\d+_[a-z_]+)?)`", text))
