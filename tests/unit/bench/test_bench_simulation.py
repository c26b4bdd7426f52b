"""The simulation figure: rows without peers, busy share, shared curves and rungs."""

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


@pytest.mark.nightly
def test_simulation_without_peers_names_the_missing_peers(no_peers: None) -> None:
    rows = {row.what: row for row in simulation(QUICK)}
    against = [row for what, row in rows.items() if "peer" in what or "that of" in what]
    # Two sizes for Syne Tune's rate, and two kinds of ASHA for two peers.
    assert len(against) == 2 + 2 * 2
    assert {row.verdict for row in against} == {"not measured"}
    assert all("is not installed" in row.beside for row in against)
    assert rows["simulated ASHA, 2 workers, 30 trials"].value


def test_failed_peer_returns_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    require("optuna")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    result = peers.ask_peer("optuna-best", 1, 10)
    assert result.answer is None
    assert "No module named" in result.reason


def test_search_with_table_curves_completes_all_trials() -> None:
    result = run_search(Search(4, 30), TableCurves())
    assert result.experiment.status is Status.COMPLETED
    assert result.experiment.trials == 30


def test_only_rungs_within_the_budget_count() -> None:
    best = Best(4)
    for epoch, loss in ((1, 0.9), (2, 0.1), (3, 0.5), (1, 0.8), (1, 0.2)):
        best.take(epoch, loss)
    # The second report is not at a rung. The fifth report exceeds the budget of four epochs.
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
    # The last trial begins at 4 s. Until then, each of the others is busy for 4 s.
    assert busy_share(courses, 2) == 1.0
    assert busy_share(courses, 4) == 0.5
