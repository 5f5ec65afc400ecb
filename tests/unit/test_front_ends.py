"""tools/front_ends.py: check, plan, recommend, the page and Python give the same answers."""

from __future__ import annotations

import pytest
from tests.thoroughness import sampled
from tools.front_ends import QUESTIONS, Question, answers, differences, table


@pytest.mark.parametrize("question", sampled(QUESTIONS, each=16, turn=5), ids=str)
def test_every_front_end_gives_the_same_answer(question: Question) -> None:
    result = answers(question)
    assert not differences(result), table(question, result)
