"""Tests of the tour: ends of journeys, and the current journeys in ARCHITECTURE.md."""

from pathlib import Path

import pytest

from control_plane.engine.actor_types import ACTOR_TYPES
from tests.tour.__main__ import main
from tests.tour.document import BLOCK, DOCUMENT, journey_text, renewed_document
from tests.tour.handlers import ROOT
from tests.tour.journeys import JOURNEYS, run_journey

LINES_MAX = 60


def test_architecture_shows_all_current_journeys() -> None:
    text = DOCUMENT.read_text()
    assert [name for _, name, _ in BLOCK.findall(text)] == list(JOURNEYS)
    assert text == renewed_document(text), "python -m tests.tour --write renews ARCHITECTURE.md"


@pytest.mark.parametrize("name", JOURNEYS)
def test_text_is_short_and_repeatable(name: str) -> None:
    text = journey_text(name)
    assert text == journey_text(name)
    assert len(text.splitlines()) < LINES_MAX


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("create", "'python train.py', train to 10 and end"),
        # Half of two trials continue to the second rung: the better one.
        ("metric", "run 1.1, train to 8 and end; run 2.1, train to 16"),
        ("notice", "'python train.py' from step 6, train to 10 and end"),
    ],
)
def test_journey_reaches_the_expected_end(name: str, end: str, tmp_path: Path) -> None:
    assert run_journey(name, tmp_path)[-1].text.endswith(end)


def test_names_the_handler_of_a_message(tmp_path: Path) -> None:
    hops = {hop.text: hop for hop in run_journey("create", tmp_path)}
    place = hops["ExperimentSubmitted to experiment#1"].place
    assert place is not None
    definition = (ROOT / place.file).read_text().splitlines()[place.line - 1]
    assert definition.startswith(f"def {place.name}(")
    assert place.name == "submit_experiment"


def test_recorder_restores_the_actor_types(tmp_path: Path) -> None:
    before = [(kind.step, kind.finish_fold) for kind in ACTOR_TYPES.values()]
    run_journey("create", tmp_path)
    assert [(kind.step, kind.finish_fold) for kind in ACTOR_TYPES.values()] == before


def test_lists_the_journeys_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in listed] == [f"JOURNEY={name}" for name in JOURNEYS]


def test_rejects_an_unknown_journey(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cretae"]) == 2
    error = capsys.readouterr().err
    assert error == "unknown journey 'cretae'; choose one of create, metric, notice\n"
