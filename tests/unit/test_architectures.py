"""The table of architectures: no name twice, none of llama.cpp's names missing."""

from __future__ import annotations

from collections import Counter

import gguf
import pytest

from edgekit.model.architectures import BY_GGUF, NOT_LANGUAGE_MODELS, TABLE
from edgekit.model.keys import TABLE as KEYS


@pytest.mark.parametrize("dialect", ["gguf", "config"])
def test_no_name_stands_in_two_rows(dialect: str) -> None:
    names = Counter(name for row in TABLE for name in getattr(row, dialect))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_name_that_gguf_py_knows_has_a_row_or_a_reason() -> None:
    known = set(gguf.MODEL_ARCH_NAMES.values())
    assert len(known) > 100
    # clip's second name there is that of a projector too.
    assert known - BY_GGUF.keys() - NOT_LANGUAGE_MODELS.keys() - {"mmproj"} == set()


def test_no_word_is_spelled_in_two_ways_by_two_rows() -> None:
    assert max(Counter(key.word for key in KEYS).values()) == 1
