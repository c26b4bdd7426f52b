"""The text of filters: terms with places, and the place of each error."""

import pytest

from control_plane.queries.filter_text import (
    CHARACTERS_MAX,
    TERMS_MAX,
    FilterInvalid,
    Term,
    Value,
    parse_filter,
)

NAMED = frozenset({"metric"})


def to_fields(text: str) -> list[tuple[bool, str, str, str, list[str]]]:
    return [
        (term.is_negated, term.key, term.name, term.operator, [value.text for value in term.values])
        for term in parse_filter(text, NAMED)
    ]


def test_terms_have_keys_names_operators_and_values() -> None:
    assert to_fields("state:running,failed metric:loss<0.3 lr>=0.01 user=me") == [
        (False, "state", "", "=", ["running", "failed"]),
        (False, "metric", "loss", "<", ["0.3"]),
        (False, "lr", "", ">=", ["0.01"]),
        (False, "user", "", "=", ["me"]),
    ]


def test_word_alone_has_no_key() -> None:
    assert to_fields('  digits "two words" - a-b') == [
        (False, "", "", "=", ["digits"]),
        (False, "", "", "=", ["two words"]),
        (False, "", "", "=", ["-"]),
        (False, "", "", "=", ["a-b"]),
    ]


def test_terms_are_negated_by_dash_or_operator() -> None:
    assert to_fields('-label:old lr!=0.1 -lr!=0.1 -"two words"') == [
        (True, "label", "", "=", ["old"]),
        (True, "lr", "", "=", ["0.1"]),
        # Two negations cancel out.
        (False, "lr", "", "=", ["0.1"]),
        (True, "", "", "=", ["two words"]),
    ]


def test_quotes_contain_spaces_commas_operators_and_escapes() -> None:
    assert to_fields(r'label:"a, b","c\"d" metric:"eval:acc"<1 "model.layers"=3') == [
        (False, "label", "", "=", ["a, b", 'c"d']),
        (False, "metric", '"eval:acc"', "<", ["1"]),
        (False, '"model.layers"', "", "=", ["3"]),
    ]
    [term] = parse_filter('metric:"eval:acc"<1', NAMED)
    assert term.plain_name == "eval:acc"


def test_terms_and_values_have_places() -> None:
    assert parse_filter(" a  lr>0.1") == (
        Term(2, "a", False, "", "", "=", (Value(2, "a"),)),
        Term(5, "lr>0.1", False, "lr", "", ">", (Value(8, "0.1"),)),
    )


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_white_space_has_no_terms(text: str) -> None:
    assert parse_filter(text) == ()


@pytest.mark.parametrize(
    ("text", "place", "value"),
    [
        ("state:", 7, ""),
        ("state: running", 7, ""),
        ("a lr>", 6, ""),
        ("state:a,", 9, ""),
        ("state:a,,b", 9, ",b"),
        (":x", 1, ":"),
        ('label:"open', 7, '"open'),
        ('"open', 1, '"open'),
        ("a,b", 2, ","),
        ("lr!0.1", 3, "!"),
        ("lr>1,2", 6, "2"),
        ("metric:<0.3", 8, "<0.3"),
        ("metric:loss", 8, "loss"),
        ("metric:loss:0.3", 8, "loss"),
        ('label:"a"b', 10, "b"),
        (r'label:"\q"', 7, r'"\q"'),
    ],
)
def test_error_names_place_and_value(text: str, place: int, value: str) -> None:
    with pytest.raises(FilterInvalid) as raised:
        parse_filter(text, NAMED)
    assert (raised.value.place, raised.value.value) == (place, value)
    assert f"character {place}: " in str(raised.value)
    assert "; expected " in str(raised.value)


def test_long_filters_are_refused() -> None:
    assert len(parse_filter("a" * CHARACTERS_MAX)) == 1
    with pytest.raises(FilterInvalid, match=f"at most {CHARACTERS_MAX} characters"):
        parse_filter("a" * (CHARACTERS_MAX + 1))
    assert len(parse_filter("a " * TERMS_MAX)) == TERMS_MAX
    with pytest.raises(FilterInvalid, match=f"at most {TERMS_MAX} terms") as raised:
        parse_filter("a " * TERMS_MAX + "b")
    assert raised.value.place == 2 * TERMS_MAX + 1


@pytest.mark.parametrize("text", ["x", "nan", "inf", "1_000", "", "1e999", "0x10"])
def test_only_finite_numbers_are_numbers(text: str) -> None:
    with pytest.raises(FilterInvalid, match="expected a number, as in lr>1"):
        Value(3, text).to_number("lr>1")


@pytest.mark.parametrize(("text", "number"), [("1", 1.0), ("-2.5e-3", -0.0025), (".5", 0.5)])
def test_numbers_have_the_notation_of_python(text: str, number: float) -> None:
    assert Value(1, text).to_number("lr>1") == number
