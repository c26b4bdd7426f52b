"""Trials that store checkpoints, and the collection of these checkpoints."""

from pathlib import Path
from typing import Any

from control_plane.checkpoint_gc.collector import Collector
from control_plane.checkpoint_gc.stores import stores_of
from detcloud.core.checkpoint import CheckpointContext
from detcloud.shared.trial_directory import CheckpointReference, TrialSpec
from detcloud.storage import build_store
from tests.unit.api.agent_side import Agent
from tests.unit.api.cluster import Cluster


class Trials:
    """Two trials of an experiment; each stores checkpoints as in the specification."""

    def __init__(self, cluster: Cluster, config: str) -> None:
        assert cluster.create(config).status == 201
        self.agent = Agent(cluster)
        self.specs: dict[str, dict[str, Any]] = {
            entry["allocation"]: entry["spec"] for entry in self.agent.sync().json["desired"]
        }
        self.agent.known = list(self.specs)

    def store(self, trial: int, steps: int, folder: Path, *, recorded: bool = True) -> str:
        """Store the folder as a checkpoint and return the UUID.

        Without `recorded`, the trial does not report the checkpoint.
        """
        spec = self.specs[f"{trial}.1"]
        context = CheckpointContext(
            TrialSpec(experiment_id=1, trial_id=trial, epoch=1, cluster_id=spec["cluster_id"]),
            build_store(spec["storage"]),
            lambda kind, **fields: self.report(trial, kind, **fields) if recorded else None,
            on_cluster=True,
        )
        return context.upload(folder, {"steps_completed": steps})

    def report(self, trial: int, kind: str, **fields: object) -> None:
        self._report_of(f"{trial}.1", kind, **fields)

    def begin_again(self, allocation: str, reason: str) -> dict[str, Any]:
        """End an allocation; return the specification of the trial's next run."""
        exited = {"kind": "exited", "reason": reason, "code": 1}
        self.agent.report(allocation, exited, writer="agent")
        self.agent.known.remove(allocation)
        desired = self.agent.sync().json["desired"]
        [spec] = [entry["spec"] for entry in desired if "spec" in entry]
        self.agent.known.append(spec["allocation_id"])
        return dict(spec)

    def restore(self, spec: dict[str, Any], destination: Path) -> None:
        """Restore the checkpoint from which a run begins, as in the trial's process."""
        latest = CheckpointReference(**spec["latest_checkpoint"])
        context = CheckpointContext(
            TrialSpec(experiment_id=1, trial_id=1, epoch=spec["epoch"], latest_checkpoint=latest),
            build_store(spec["storage"]),
            lambda kind, **fields: self._report_of(spec["allocation_id"], kind, **fields),
            on_cluster=True,
        )
        context.download(latest, destination)

    def _report_of(self, allocation: str, kind: str, **fields: object) -> None:
        answer = self.agent.report(allocation, {"kind": kind, **fields})
        assert answer.status == 200, answer.body

    def kill(self, cluster: Cluster) -> None:
        cluster.post("/experiments/1/kill", {})
        self.agent.sync()
        for allocation in self.specs:
            exited = {"kind": "exited", "reason": "killed", "code": None}
            self.agent.report(allocation, exited, writer="agent")


def collect(cluster: Cluster) -> None:
    """Run the collector until no work is left; advance the clock between calls."""
    services = cluster.services
    collector = Collector(stores_of(services))
    for _ in range(50):
        if not collector.collect(budget_seconds=60):
            return
        cluster.clock.ms += 60_000
    raise AssertionError("the collection does not end")
