"""The exit status of the bench."""

from collections.abc import Iterator

import pytest

from bench import cli
from bench.figures import Figure, Row, Scale, at_most


def missing_target(scale: Scale) -> Iterator[Row]:
    """Measure a figure that misses the target."""
    yield at_most("a slow thing", 2, 1, "s")


def breaking(scale: Scale) -> Iterator[Row]:
    """Measure a figure, and raise an exception before the next."""
    yield at_most("a quick thing", 1, 2, "s")
    raise ValueError("no program")


@pytest.mark.parametrize(("figure", "status"), [(missing_target, 0), (breaking, 1)])
def test_status_is_1_only_if_a_group_raised(
    figure: Figure,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(cli.FIGURES, "tried", figure)
    assert cli.run(["--only", "tried"]) == status
    assert "thing" in capsys.readouterr().out


def test_broken_group_keeps_earlier_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.FIGURES, "tried", breaking)
    cli.run(["--only", "tried"])
    printed = capsys.readouterr().out
    assert "a quick thing" in printed
    assert "ValueError: no program" in printed
