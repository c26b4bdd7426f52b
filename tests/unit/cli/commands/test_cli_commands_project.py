"""Command-line arguments for moves of experiments and for metadata."""

from argparse import ArgumentTypeError

import pytest

from detcloud.cli.commands.project import parse_move
from detcloud.cli.framework.metadata_values import merge_metadata, parse_metadata_value
from detcloud.client.experiment_list import report_omitted
from detcloud.client.resource import metadata_filters
from detcloud.shared.errors import DetcloudError


@pytest.mark.parametrize(
    ("words", "move"),
    [
        (["1", "Vision/Digits"], ([1], "Vision", "Digits")),
        (["1,2", "3", "1", "Vision/Old ones"], ([1, 2, 3], "Vision", "Old ones")),
        # The form of Determined's command.
        (["7", "Vision", "Digits"], ([7], "Vision", "Digits")),
        # The cluster refuses names with a slash later.
        (["7", "a/b/c"], ([7], "a", "b/c")),
    ],
)
def test_move_is_parsed_into_experiments_and_destination(
    words: list[str], move: tuple[list[int], str, str]
) -> None:
    assert parse_move(words) == move


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["Vision/Digits"], "names no destination"),
        (["1", "/Digits"], "names no destination"),
        (["1", "Vision/"], "names no destination"),
        (["1", "Vision"], "names no destination"),
        (["one", "Vision/Digits"], "'one' is not an id"),
        (["1", "2", "x", "Vision/Digits"], "'x' is not an id"),
    ],
)
def test_incomplete_move_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(DetcloudError, match=why):
        parse_move(words)


def test_metadata_is_merged_by_path() -> None:
    known = {"data": {"version": 3, "set": "mnist"}, "note": "x"}
    for text, after in (
        ("data.version=4", {"data": {"version": 4, "set": "mnist"}, "note": "x"}),
        ("data.set=", {"data": {"version": 3}, "note": "x"}),
        ("note.by=ann", {**known, "note": {"by": "ann"}}),
        ("ok=true", {**known, "ok": True}),
        ("none.there=", known),
        ("note.by=", known),
        ("data.version.major=", known),
        ('"a.b".c=1', {**known, "a.b": {"c": 1}}),
    ):
        assert merge_metadata(known, *parse_metadata_value(text)) == after
    assert known == {"data": {"version": 3, "set": "mnist"}, "note": "x"}
    for text in ("note", "=x", "a..b=1"):
        with pytest.raises(ArgumentTypeError, match=r"is not KEY=VALUE"):
            parse_metadata_value(text)


def test_metadata_path_reaches_key_with_dots() -> None:
    known = {"data.version": 3, "note": "x"}
    for text in ("data.version=4", '"data.version"=4', "'data.version'=4"):
        assert merge_metadata(known, *parse_metadata_value(text)) == {**known, "data.version": 4}
    assert merge_metadata(known, *parse_metadata_value("data.version=")) == {"note": "x"}
    both = {"data.version": 3, "data": {"set": "mnist"}}
    with pytest.raises(DetcloudError, match=r'write "data.version" or "data"."version"'):
        merge_metadata(both, *parse_metadata_value("data.version=4"))


def test_metadata_filters_accept_a_mapping_or_texts() -> None:
    assert metadata_filters({"a.b": 3, "c": "x", "d": True}) == ["a.b=3", "c=x", "d=true"]
    assert metadata_filters("a=1") == metadata_filters(["a=1"]) == ["a=1"]
    assert metadata_filters({}) is None


def test_omitted_rows_of_a_list_are_reported() -> None:
    messages: list[str] = []
    assert not report_omitted({"left_out_before": None}, messages.append)
    assert report_omitted({"left_out_before": 7}, messages.append)
    assert messages[0].endswith("those before 7 are left out")
    with pytest.warns(UserWarning, match="those before 7 are left out"):
        report_omitted({"left_out_before": 7})
