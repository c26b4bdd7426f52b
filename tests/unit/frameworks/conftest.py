"""Trials of frameworks: one process runs a trial several times, from its latest checkpoint."""

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from detcloud import core
from detcloud.shared.trial_directory import ENDLESS
from tests.unit.core.held_store import HeldStore, held_storage, held_store
from tests.unit.core.trial_files import direct, enter, make_trial, reports

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


class TrialRuns:
    """Runs of a trial below `folder`, each from the latest checkpoint of earlier runs.

    The searcher gives an endless length by default.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self._spec = {"metric": "loss", "threads": 1, **spec}
        self._epoch = 0

    @contextmanager
    def run(self, **directives: Any) -> Iterator[core.Context]:
        """Enter another run of the trial in the test process."""
        self._epoch += 1
        latest = self.latest_checkpoint() if self._epoch > 1 else None
        spec = {
            "latest_checkpoint": latest,
            "steps_completed": (latest or {}).get("steps_completed", 0),
        }
        trial = make_trial(self.folder, **{**spec, **self._spec}, epoch=self._epoch)
        direct(trial, revision=self._epoch, **{"length": ENDLESS, **directives})
        enter(trial, self._monkeypatch)
        with core.init() as context:
            yield context

    def hold_store(self) -> HeldStore:
        """Give later runs a store that waits for a release, and return the store."""
        held = held_store(self.folder / "store")
        self._spec["storage"] = held_storage(held.root)
        return held

    def order(self) -> list[tuple[str, int]]:
        """Return training and checkpoint reports in file order, with their batches."""
        lines = reports(self.folder / "trial")
        return [
            (line["kind"], line["steps_completed"])
            for line in lines
            if line["kind"] == "checkpoint" or line.get("group") == "training"
        ]

    def run_example(self, name: str, **directives: Any) -> None:
        """Run the script of an example as a run of the trial."""
        self._epoch += 1
        trial = make_trial(self.folder, **self._spec, epoch=self._epoch)
        direct(trial, revision=self._epoch, **{"length": ENDLESS, **directives})
        enter(trial, self._monkeypatch)
        runpy.run_path(str(EXAMPLES / name / "train.py"), run_name="__main__")

    def lines(self, kind: str) -> list[dict[str, Any]]:
        return reports(self.folder / "trial", kind)

    def steps(self, kind: str, group: str | None = None) -> list[int]:
        """Return the batches of the reports of a kind, and of a group of metrics if given."""
        return [
            line["steps_completed"]
            for line in self.lines(kind)
            if group is None or line["group"] == group
        ]

    def exits(self) -> list[str]:
        return [line["reason"] for line in self.lines("exit")]

    def latest_checkpoint(self) -> dict[str, Any] | None:
        stored = self.lines("checkpoint")
        if not stored:
            return None
        names = ("uuid", "path", "steps_completed", "manifest_sha256")
        return {"trial_id": 4, **{name: stored[-1][name] for name in names}}


@pytest.fixture
def trial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a function that makes trials in separate folders, with one torch thread."""

    def make(name: str, **spec: Any) -> TrialRuns:
        return TrialRuns(tmp_path / name, monkeypatch, **spec)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make
    torch.set_num_threads(threads)
