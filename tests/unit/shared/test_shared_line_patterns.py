"""Regular expressions over lines: the syntax of RE2, matches, required texts and limits."""

import re
from random import Random
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcloud.shared.line_patterns.automaton import (
    INSTRUCTIONS_MAX,
    KNOWN_MAX,
    LinePattern,
    PatternSlow,
)
from detcloud.shared.line_patterns.syntax import PATTERN_CHARACTERS_MAX, PatternInvalid


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("out of memory", "CUDA out of memory.", "out of luck"),
        (".*CUDA out of memory.*", "E: CUDA out of memory: 2 GiB", "cuda out of memory"),
        ("(?i)cuda", "CuDa", "cud"),
        ("(?i:cuda) oom", "CUDA oom", "CUDA OOM"),
        ("a(?i)b|c", "aB", "A"),
        ("^error", "error: x", "an error"),
        (r"error$", "an error", "error: x"),
        (r"\Aa\z", "a", "aa"),
        (r"\bfail\b", "to fail now", "failure"),
        (r"\Bail", "fail", "ail"),
        (r"rank \d+ of [0-9]{2}", "rank 7 of 16", "rank 7 of 1"),
        ("(loss|error)=NaN", "error=NaN", "loss=nan"),
        ("(?P<kind>E[A-Z]+)", "ENOSPC", "Enospc"),
        ("x{2,3}y", "xxy", "xy"),
        ("a{2", "a{2", "aa"),
        (r"\x41\x{42}\101", "ABA", "ABB"),
        (r"\Qa.b\E+", "a.bb", "axb"),
        ("[[:digit:]]-[^[:alpha:]]", "1--", "1-a"),
        ("[]x]", "]", "y"),
        (r"[\d-]", "-", "a"),
        (r"\pL\p{Nd}", "é7", "77"),
        (r"\PL", "7", "é"),
        ("日本", "の日本の", "日"),
        ("", "", None),
        ("a|", "b", None),
    ],
)
def test_pattern_matches_part_of_line(pattern: str, matching: str, other: str | None) -> None:
    compiled = LinePattern(pattern)
    assert compiled.matches(matching)
    assert other is None or not compiled.matches(other)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "has a `(` without its `)`"),
        ("a)", "has a `)` without its `(`"),
        ("[a", "has a `[` without its `]`"),
        ("*a", "has a `*` without an expression to repeat"),
        ("a**", "has `*` after another repetition"),
        ("(?=a)", "has `(?=`, which RE2 does not have"),
        ("(?<!a)", "has `(?<`, which RE2 does not have"),
        (r"(a)\1", r"has the backreference \1, which RE2 does not have"),
        (r"\y", r"has the escape \y, which RE2 does not have"),
        ("a\\", r"has a `\` at its end"),
        ("[b-a]", "has a range of characters that ends before it begins"),
        ("[[:no:]]", "has the unknown class [:no:]"),
        (r"\p{Greek}", r"has \p{Greek}: only general categories are supported"),
        ("a{1001}", "has the repetition {1001}, which RE2 does not accept"),
        ("a{2,1}", "has the repetition {2,1}, which RE2 does not accept"),
        (r"\x{110000}", r"has an escape \x beyond the last character of Unicode"),
        ("a" * (PATTERN_CHARACTERS_MAX + 1), "has more than 1,000 characters"),
        ("(" * 60 + ")" * 60, "has more than 50 groups within groups"),
        ("(a{100}){100}", "is too large: use smaller repetitions"),
        ("((){1000}){1000}", "is too large: use smaller repetitions"),
    ],
)
def test_invalid_pattern_has_reason(pattern: str, reason: str) -> None:
    with pytest.raises(PatternInvalid, match=re.escape(reason)):
        LinePattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (".*CUDA out of memory.*", {"cuda out of memory"}),
        ("(?i)Error|fail(ed|ure)", {"error", "failed", "failure"}),
        ("loss(=|: )[Nn]a[Nn]", {"loss=nan", "loss: nan"}),
        (r"\d+ of \d+", {" of "}),
        ("x?(abc)+y*", {"abc"}),
        ("(abc|d*)", set()),
        ("é", set()),
        (r"\w", set()),
        ("(a|)", set()),
    ],
)
def test_matching_lines_contain_a_required_text(pattern: str, texts: set[str]) -> None:
    assert LinePattern(pattern).required_texts == texts


@pytest.mark.parametrize(
    ("pattern", "window"),
    [
        ("E[0-9]{2}x*", "[E][0-9][0-9]"),
        (r"a*\d\b_.", "[0-9][_]"),
        ("[ab]" * 40, "[ab]" * 16),
        ("é[0-9]", ""),
        ("(a|b)c", ""),
    ],
)
def test_matching_lines_contain_a_window(pattern: str, window: str) -> None:
    found = LinePattern(pattern).required_window
    # The window has `[\x30-\x39]` for `[0-9]` and `[\x45-\x45]` for `E`.
    shown = re.sub(r"\\x(..)", lambda code: chr(int(code[1], 16)), found)
    assert re.sub(r"(.)-\1", r"\1", shown).replace("a-b", "ab") == window


_ATOMS = st.sampled_from([*"abA1. ", r"\d", r"\w", "[ab]", "[^a]", r"\b", "^", "$", "(?:)"])
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "*?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=8,
)


@given(_PATTERNS, st.lists(st.text("abA1 .\t", max_size=8), max_size=5))
def test_matches_agree_with_python(pattern: str, lines: list[str]) -> None:
    compiled, expected = LinePattern(pattern), re.compile(pattern, re.ASCII)
    for line in lines:
        is_match = expected.search(line) is not None
        assert compiled.matches(line) is is_match
        if is_match and compiled.required_texts:
            assert any(text in line.lower() for text in compiled.required_texts)
        if is_match:
            assert re.search(compiled.required_window, line)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(a*)*c", "(.*)*x", "a?" * 30 + "a" * 30])
def test_time_is_linear_in_line(pattern: str) -> None:
    compiled = LinePattern(pattern)
    began = process_time()
    compiled.matches("a" * 200_000 + "!")
    # Python's `re` needs exponential time. The automaton needs about 10 ms.
    assert process_time() - began < 2


def test_expensive_automaton_is_given_up() -> None:
    pattern = LinePattern("(a|b)*a(a|b){12}c", work_max=1_000)
    with pytest.raises(PatternSlow):
        pattern.matches("".join(Random(0).choices("ab", k=10_000)))


def test_memory_of_automaton_is_bounded() -> None:
    pattern = LinePattern(".x")
    for start in range(0x4E00, 0x4E00 + 3 * KNOWN_MAX, 100):
        assert not pattern.matches("".join(map(chr, range(start, start + 100))))
        # One line may add a transition for each of its characters.
        assert pattern._known <= KNOWN_MAX + 100
    assert pattern.matches("日x")


def test_instructions_are_bounded() -> None:
    LinePattern(f"a{{{INSTRUCTIONS_MAX // 2}}}")
    with pytest.raises(PatternInvalid):
        LinePattern("(aa){1000}bb")
