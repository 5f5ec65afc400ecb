"""The table of architectures: no name twice, none of llama.cpp's names missing."""

from __future__ import annotations

from collections import Counter
from pkgutil import get_data

import gguf
import pytest

from edgekit.model.architectures import BY_GGUF, NOT_LANGUAGE_MODELS, TABLE


@pytest.mark.parametrize("dialect", ["gguf", "config"])
def test_no_name_stands_in_two_rows(dialect: str) -> None:
    names = Counter(name for row in TABLE for name in getattr(row, dialect))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_name_that_gguf_py_knows_has_a_row_or_a_reason() -> None:
    known = set(gguf.MODEL_ARCH_NAMES.values())
    assert len(known) > 100
    # clip's second name there is that of a projector too.
    assert known - BY_GGUF.keys() - NOT_LANGUAGE_MODELS.keys() - {"mmproj"} == set()


def test_every_hyperparameter_has_one_row() -> None:
    text = get_data("edgekit.model", "hyperparameters.tsv") or b""
    rows = [row for row in text.decode().splitlines() if not row.startswith("#")]
    assert len({row.split("\t")[0] for row in rows}) == len(rows)
