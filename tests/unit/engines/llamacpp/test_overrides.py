"""Patterns of -ot: the same answers as std::regex, in bounded time."""

from __future__ import annotations

import pytest

from edgekit.engines.llamacpp.overrides import searcher
from edgekit.errors import UsageError

NAME = "blk.12.ffn_up_exps.weight"


# Every expected value was compared with std::regex_search of libstdc++.
@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("exps", True),
        (r"\.ffn_.*_exps\.", True),
        (r"blk\.(1[0-9]|2)\.ffn_(up|gate)_exps", True),
        (r"blk\.1\.", False),
        (r"^ffn", False),
        (r"weight$", True),
        (r"blk\.\d+\.ffn_(?!down).*exps", True),
        (r"blk\.\d+\.ffn_(?!up)", False),
        (r"[[:digit:]]{2}", True),
        (r"[^a-z._0-9]", False),
        (r"\bblk\b", True),
        (r"a{3}", False),
        (r"p*?s{1}", True),
        ("", True),
        ("|x", True),
    ],
)
def test_searcher_finds_what_std_regex_finds(pattern: str, *, matches: bool) -> None:
    assert searcher(pattern)(NAME) is matches


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("blk.(0", "( without a )"),
        ("blk.0)", ") without a ("),
        ("[0-9", "[ without a ]"),
        ("*exps", "nothing to repeat"),
        ("a{x}", "number of repeats"),
        ("a{9999}", "0 to 1000"),
        ("[z-a]", "empty"),
        ("(?i)exps", "kind of group"),
        (r"(a)\1", "refers back"),
        ("a\\", "ends with a \\"),
        ("x" * 1001, "1000 characters"),
        ("(" * 60 + ")" * 60, "50 groups"),
        ("a*" * 13, "12 repeats"),
    ],
)
def test_searcher_rejects_an_invalid_pattern(pattern: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        searcher(pattern)
    assert message in str(caught.value)


@pytest.mark.parametrize("pattern", ["(a|a)*" * 6 + "b", "(" * 10 + "a*" + ")*" * 10 + "b"])
def test_searcher_does_not_backtrack(pattern: str) -> None:
    assert not searcher(pattern)("a" * 63)
