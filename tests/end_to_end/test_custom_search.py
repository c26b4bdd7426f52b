"""A search method in a separate process, killed with the server in the middle of a search."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tiny_model import write_model
from tests.patience import PROCESS_SECONDS_MAX, wait_until
from tests.unit.searcher.search_harness import expected_lengths

pytestmark = pytest.mark.end_to_end

CUSTOM = {"name": "custom", "metric": "loss", "unit": "batches"}
FIRST, CHILDREN = 3, 1
# The tiny model's loss is x squared.
PROGRAM = f"""\
import sys
from detcloud import searcher
from tests.unit.searcher.search_harness import Generations

class Squared(Generations):
    def on_validation_completed(self, state, request_id, metric, train_length):
        assert metric == self.x[request_id] ** 2
        metric_share = self.x[request_id] / train_length
        return super().on_validation_completed(state, request_id, metric_share, train_length)

runner = searcher.LocalSearchRunner(Squared({FIRST}, {CHILDREN}), "search")
print("experiment", runner.run(sys.argv[1], sys.argv[2]), flush=True)
"""


class Runner:
    """The successive processes of a search method."""

    def __init__(self, laptop: Laptop, folder: Path) -> None:
        self._laptop = laptop
        self._program = folder / "search.py"
        self._program.write_text(PROGRAM)
        self._files = write_model(folder, pause_seconds=0.1, searcher=CUSTOM)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, self._program, *self._files]
        self._process = subprocess.Popen(
            [str(word) for word in command],
            env=self._laptop.environment,
            cwd=self._laptop.home.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill(self) -> None:
        """Kill the process, as an impatient owner of the machine would."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def output(self) -> str:
        """Return the output of the process after an exit without a kill."""
        assert self._process is not None
        return self._process.communicate(timeout=2 * PROCESS_SECONDS_MAX)[0]


@pytest.fixture
def runner(laptop: Laptop, tmp_path: Path) -> Iterator[Runner]:
    laptop.run("up", "--slots", 2)
    one = Runner(laptop, tmp_path)
    yield one
    one.kill()


@pytest.mark.nightly
def test_search_with_a_killed_method_and_server_creates_the_same_trials(
    laptop: Laptop, runner: Runner
) -> None:
    runner.start()
    wait_until(lambda: _trials(laptop) >= FIRST)
    runner.kill()
    # The trials continue without the method, up to their assigned lengths.
    wait_until(lambda: _waiting_events(laptop) > FIRST)
    runner.start()
    wait_until(lambda: _trials(laptop) > FIRST)
    server = laptop.record()["pid"]
    laptop.shell(["kill", f"-{signal.SIGKILL.value}", str(server)])
    laptop.run("up", "--slots", 2)
    runner.kill()
    runner.start()
    assert runner.output().splitlines()[-1] == "experiment 1"
    assert laptop.json("describe", 1)["state"] == "COMPLETED"
    assert _lengths(laptop) == expected_lengths(FIRST, CHILDREN)
    laptop.replay(1)


def test_runner_ends_with_the_experiment(laptop: Laptop, runner: Runner) -> None:
    runner.start()
    wait_until(lambda: _trials(laptop) >= FIRST)
    laptop.run("kill", 1)
    assert runner.output().splitlines()[-1] == "experiment 1"


def _trials(laptop: Laptop) -> int:
    with laptop.cluster() as cluster:
        return sum(1 for one in cluster.experiments() for _ in one.trials())


def _waiting_events(laptop: Laptop) -> int:
    with laptop.cluster() as cluster:
        waiting: int = cluster.experiment(1).data["search_method"]["events_waiting"]
        return waiting


def _lengths(laptop: Laptop) -> dict[float, list[int]]:
    """Return the batches after which each trial validated, by the trial's unique x."""
    found: dict[float, list[int]] = {}
    with laptop.cluster() as cluster:
        for trial in cluster.experiment(1).trials():
            x = trial.data["hparams"]["x"]
            assert x not in found
            reports = trial.metrics("validation")
            found[x] = sorted({report["steps_completed"] for report in reports})
    return found
