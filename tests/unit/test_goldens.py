"""EdgeKit's answers, compared with the recorded ones in tests/golden."""

from __future__ import annotations

import pytest
from tests.thoroughness import LONG, wide
from tools.golden_text import hashed
from tools.goldens import GOLDEN, GROUPS, Group, difference

AGAIN = (
    "\nAnswers differ from tests/golden. Where that is meant, record them again with"
    " `python tools/goldens.py`, and read every changed answer before you commit it."
)
# The questions of `make test`: those that together cover the most branches for their time. `make test-all` asks all.
SAMPLE = (GOLDEN / "sample.list").read_text(encoding="utf-8").splitlines()


@pytest.mark.skipif(LONG, reason="make test-all asks every question")
def test_sampled_questions_are_answered_as_recorded() -> None:
    changes = ""
    for group in GROUPS:
        if group.is_comparable:
            answers = group.answers(
                question for question in group.questions if question.title in SAMPLE
            )
            recorded = group.recorded()
            changes += difference({title: recorded.get(title, "") for title in answers}, answers)
    assert not changes, changes + AGAIN


def test_sample_list_names_existing_questions() -> None:
    assert set(SAMPLE) <= {question.title for group in GROUPS for question in group.questions}


@wide
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_all_questions_are_answered_as_recorded(group: Group) -> None:
    if not group.is_comparable:
        pytest.skip("recorded with another Python, whose argparse prints other texts")
    changes = difference(group.recorded(), group.answers())
    assert not changes, changes + AGAIN


def test_recorded_questions_are_those_of_each_group() -> None:
    for group in GROUPS:
        assert list(group.recorded()) == [question.title for question in group.questions], (
            group.name + AGAIN
        )


def test_difference_shows_the_question_and_the_lines_that_changed() -> None:
    before, after = {"a": "1\n2\n", "b": "same\n"}, {"a": "1\n3\n", "b": "same\n"}
    assert difference(before, after) == "==== a\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n\n"
    assert not difference(before, before)


def test_difference_shows_the_new_text_of_a_hash_in_a_changed_line() -> None:
    same, old, new = (hashed(f"the {name} text") for name in ("same", "old", "new"))
    before, after = {"a": f"{same}\n{old}\n"}, {"a": f"{same}\n{new}\n"}
    digest = new.rpartition(" ")[2]
    assert difference(before, after).endswith(f"-{old}\n+{new}\n{digest}: the new text\n\n")
