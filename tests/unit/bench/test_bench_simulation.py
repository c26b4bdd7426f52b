"""The simulation figure: its arithmetic, that curves are shared, and peers that are not there."""

from importlib.metadata import PackageNotFoundError, version

import pytest

from bench import peers
from bench.curve_table import EPOCHS, PARAMETERS, curves, row_of
from bench.figures import QUICK
from bench.simulation import (
    Search,
    TableCurve,
    TableCurves,
    busy_share,
    run_search,
    simulation,
)
from bench.simulation_peers import Best
from control_plane.actors.records import Status
from tests.conftest import require


@pytest.fixture
def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        if name in peers.SEARCHES:
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(peers, "version", absent)


def test_it_measures_without_peers_and_says_that_they_are_missing(no_peers: None) -> None:
    rows = {row.what: row for row in simulation(QUICK)}
    against = [row for what, row in rows.items() if "peer" in what or "that of" in what]
    # Two sizes against a peer, and two kinds of ASHA against two peers.
    assert len(against) == 2 + 2 * 2
    assert {row.verdict for row in against} == {"not measured"}
    assert all("is not installed" in row.beside for row in against)
    assert rows["simulated ASHA, 2 workers, 30 trials"].value


def test_a_peer_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    require("optuna")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    found = peers.ask_peer("optuna-best", 1, 10)
    assert found.answer is None
    assert "No module named" in found.reason


def test_a_search_on_the_table_ends_with_all_its_trials() -> None:
    found = run_search(Search(4, 30), TableCurves())
    assert found.experiment.status is Status.COMPLETED
    assert found.experiment.trials == 30


def test_only_rungs_within_the_budget_count() -> None:
    best = Best(4)
    for epoch, loss in ((1, 0.9), (2, 0.1), (3, 0.5), (1, 0.8), (1, 0.2)):
        best.take(epoch, loss)
    # The second epoch is at no rung, the last report is the fifth of four.
    assert (best.loss, best.epochs) == (0.5, 5)


def test_hyperparameters_have_one_curve() -> None:
    hparams = {name: 0.1 * n for n, name in enumerate(PARAMETERS)}
    assert row_of(hparams) == row_of(dict(reversed(hparams.items())))
    assert len(curves()[row_of(hparams)]) == EPOCHS


def test_workers_are_busy_until_the_last_trial_is_created() -> None:
    courses = TableCurves()
    courses.by_trial = {
        number: TableCurve(1000.0, [], began_ms, None, epochs)
        for number, (began_ms, epochs) in enumerate([(0, 4), (0, 9), (4_000, 9)])
    }
    # The last begins at 4 s; until then 4 and 4 of 2 * 4 s.
    assert busy_share(courses, 2) == 1.0
    assert busy_share(courses, 4) == 0.5
