"""The answers that people get today, compared with the recorded ones in tests/golden."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.thoroughness import wide
from tools.goldens import GROUPS, Group, Question, difference

AGAIN = (
    "\nAnswers differ from tests/golden. Where that is meant, record them again with"
    " `python tools/goldens.py`, and read every changed answer before you commit it."
)
# How many questions of each group are asked in every run: the cheap ones. `make test-all` asks all of them.
SAMPLE = {
    "check_text": 6,
    "check_json": 2,
    "plan_text": 5,
    "plan_json": 1,
    "recommend_text": 1,
    "compare": 1,
    "estimate": 2,
    "inspect": 1,
    "hardware": 2,
    "errors": 4,
    "help": 2,
    "usage": 2,
    "rest": 3,
    "python": 4,
}


def spread(questions: Sequence[Question], count: int) -> Sequence[Question]:
    """At most `count` of them, evenly spaced."""
    return questions[:: -(-len(questions) // count)]


def test_a_sample_of_the_questions_is_answered_as_recorded() -> None:
    differ = ""
    for group in GROUPS:
        if group.name in SAMPLE and group.is_comparable:
            answers = group.answers(spread(group.questions, SAMPLE[group.name]))
            recorded = group.recorded()
            differ += difference({title: recorded.get(title, "") for title in answers}, answers)
    assert not differ, differ + AGAIN


@wide
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_all_questions_are_answered_as_recorded(group: Group) -> None:
    if not group.is_comparable:
        pytest.skip("recorded with another Python, whose argparse words its answers in another way")
    differ = difference(group.recorded(), group.answers())
    assert not differ, differ + AGAIN


def test_the_recorded_questions_are_those_that_are_asked() -> None:
    for group in GROUPS:
        assert list(group.recorded()) == [one.title for one in group.questions], group.name + AGAIN


def test_difference_shows_the_question_and_the_lines_that_changed() -> None:
    before, after = {"a": "1\n2\n", "b": "same\n"}, {"a": "1\n3\n", "b": "same\n"}
    assert difference(before, after) == "==== a\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n\n"
    assert not difference(before, before)
