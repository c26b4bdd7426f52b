"""The share of sentences with pointing words stays below the limit of each folder."""

import pytest

from tests.unit.house import prose
from tests.unit.house.prose import (
    Shares,
    count_pointers,
    find_excesses,
    first_sentences,
    measure_folders,
    read_limits,
)


def test_shares_of_pointing_words_stay_below_the_limits() -> None:
    excesses = find_excesses(measure_folders(), read_limits())
    assert excesses == [], "name the things in place of pointing words:\n" + "\n".join(excesses)


def test_pointing_words_are_counted_outside_quotes() -> None:
    assert count_pointers("Return what it holds for those who ask.") == 3
    assert count_pointers("Return the lease of the agent, or `None` if it expired.") == 1
    assert count_pointers('Print "it is there".') == 0


def test_first_sentences_of_docstrings_count() -> None:
    module = (
        '"""A module. More."""\nclass A:\n    """A class.\n\n    More."""\n    def f(self): ...'
    )
    assert list(first_sentences(module)) == ["A module.", "A class."]


def test_looser_share_and_unknown_folder_are_excesses() -> None:
    limits = {"a": Shares(0.1, 0.0, 0.0)}
    assert find_excesses({"a": Shares(0.1005, 0.0, 0.001)}, limits) == []
    assert len(find_excesses({"a": Shares(0.102, 0.002, 0.0)}, limits)) == 2
    assert len(find_excesses({"b": Shares(0.01, 0.0, 0.0)}, limits)) == 1


@pytest.mark.parametrize("option", ["--help", "--unknown"])
def test_options_write_no_limits(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = prose.LIMITS.read_bytes()
    with pytest.raises(SystemExit):
        prose.main([option])
    assert prose.LIMITS.read_bytes() == before
    assert "tests.unit.house.prose" in "".join(capsys.readouterr())
