"""The size of grammars and patterns: how many continuations they leave open at once."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.gateway.grammars import MAX_DEPTH, MAX_SIZE, GrammarError, gbnf_size, pattern_size

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
# Each rule is its successor twice, if at all.
DOUBLED = (
    "root ::= a0 a0\n"
    + "".join(f"a{n} ::= a{n + 1}? a{n + 1}?\n" for n in range(12))
    + 'a12 ::= "a"'
)


@pytest.mark.parametrize(
    ("grammar", "size"),
    [
        ('root ::= "abc"', 1),
        ('root ::= "a" "b" "c"', 1),
        ('root ::= "a" | "b" | "c"', 3),
        ('root ::= "a"{0,2000}', 2001),
        ('root ::= "a"{5}', 6),
        ('root ::= "a"? "b"? "c"', 3),
        ('root ::= "a"? "b" "c"? "d"', 2),
        ('root ::= ((("a"{0,30}){0,30}){0,30})', 31**3),
        ("root ::= " + "(" * 11 + '"a"' + "{0,2})" * 11, 3**11),
        ('root ::= b{0,30}\nb ::= c{0,30} # a comment "{\nc ::= "a"{0,30}', 31**3),
        (DOUBLED, 2**13),
        ('root ::= "a" root | "b"', 2),
        ('root ::= [a-z({] "{0,9}" "\\"{0,9}"', 1),
        ("root ::= " + '"a"{0,9999999999}' * 3, MAX_SIZE),
        ('root ::= "a"{ 2 , 5 }\r\n', 6),
        ('root ::= "(" root "and" root ")" | [0-9]+', 3),
        ('root ::= "a" root root | "a"', 2),
        ('root ::= "if" c root ("else" root)? | "in" c | c\nc ::= "(" c ")" | "c"', 6),
        ('root ::= "<" [a-z]+ ">" root* "</" [a-z]+ ">"', 3),
    ],
)
def test_gbnf_size(grammar: str, size: int) -> None:
    assert gbnf_size(grammar) == size


def test_gbnf_size_of_a_grammar_in_use_is_small() -> None:
    assert gbnf_size(JSON) < 1000


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        (r"^\d{3}-\d{4}$", 5),
        (r"^(foo|bar)?$", 3),
        (r"^((a{0,30}){0,30}){0,30}$", 31**3 + 1),
        (r"[({]+\{0,999}", 2),
        (r"(?:a|b){2,5}", 12),
        ("(a+)+$", 4),
        (r"((a{ 0,30}){ +0,30 }){0,30x}", 31**3),
        (r"a{,30}", 31),
        (r"a{name}\x{1F600}\p{L}", 1),
        ("^{", 1),
        ("abc{", 1),
        (r"^{[a-z]{2}: .*}$", 3),
        ("(?:{a{0,99}){0,99}", 100 * 100),  # the first bracket does not hide what follows
    ],
)
def test_pattern_size(pattern: str, size: int) -> None:
    assert pattern_size(pattern) == size


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= ("a"', "a bracket is not closed"),
        ("root ::= a", "no rule 'a'"),
        ("root ::= " + "(" * 20_000, f"nested more than {MAX_DEPTH} levels deep"),
        ("a0 ::= a1\n" + "".join(f"a{n} ::= a{n + 1}\n" for n in range(1, 500)), "nested more"),
        ('root ::= "a")', "closed that was not opened"),
        ("a b", "does not begin with a rule"),
        ('a ::= "b"\na ::= "c"', "names two rules"),
        ('root ::= "a" #\r ((("a"{0,30}){0,30}){0,30})', "a carriage return"),
        ('root ::= (("a"{0,30}){0,30}){0,30}\0\nroot ::= "a"', "a null character"),
        ('root ::= ("a"{#\n0,30}){#\n0,30}\n0 ::= "z"\n30 ::= "z"', "{ is not closed"),
        ('root ::= "a"{x}', "{ is not closed, or has something else in it .character 13"),
        ('root ::= "a', '" is not closed'),
        ("root ::= <a", "< is not closed"),
    ],
)
def test_gbnf_size_of_what_is_not_a_grammar(grammar: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        gbnf_size(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a" root root | "a" root | "b"',
        'root ::= "a" x x | "a" y x | "a"\nx ::= root\ny ::= root',
        'root ::= "a" x | "b"\nx ::= root "b" | root "c"',
        'root ::= "(" root "and" root ")" | "(" root "or" root ")" | "z"',
        'root ::= ("a" root "b")? ("a" root)? "z"',
        'root ::= "a" root x | "a"\nx ::= "a" x root | "a"',
        'root ::= "a" w | "a"\nw ::= root y\ny ::= "a" root y | "b"',
        'root ::= "a" root root root | "a"',
        # Whatever comes first.
        'root ::= w\nw ::= v\nv ::= x y\nx ::= "a" w | "a"\ny ::= "a" y x | "b"',
        'root ::= "s" g | "t" f | "t" g\ng ::= "u" f | "v" root | "w"\nf ::= "x" g | "y"',
        'root ::= [a-f] root | [^b-z] root "c" | "z"',
        'root ::= "\\u0061" root | "a" root "b" | "z"',
    ],
)
def test_recursive_alternatives_that_begin_alike_are_refused(grammar: str) -> None:
    """What is open doubles with each token: 12 tokens took llama.cpp a minute."""
    with pytest.raises(GrammarError, match="begin alike"):
        gbnf_size(grammar)


@pytest.mark.parametrize("text", ["[", "{", '"', "<", "a{", "[\\", '"\\', "(?", "{1", "a{1,"])
def test_what_is_not_closed_is_read_once(text: str) -> None:
    """A reader that tries again at every character would take minutes."""
    long = text * 99_999
    with pytest.raises(GrammarError):
        gbnf_size(f"root ::= {long}")
    with suppress(GrammarError):
        pattern_size(long)
    for filler in (" ", "1"):
        with pytest.raises(GrammarError):
            gbnf_size('root ::= "a" {' + filler * 100_000 + "x")


@given(st.text(alphabet='ab"\\[](){}|?*+,0123456789:= \n'))
def test_any_text_has_a_size_or_is_refused(text: str) -> None:
    for size_of in (gbnf_size, pattern_size):
        with suppress(GrammarError):
            assert 0 <= size_of(text) <= MAX_SIZE
