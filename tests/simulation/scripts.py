"""Scripts of allocations, which return report lines."""

from simulator.machines.report_stream import Line
from simulator.stepped.scripted_agent import Run


def train_at_once(run: Run) -> list[Line]:
    """Train to the directed length in a single round, validate, and end or idle.

    A killed run reports its end. A preempted run reports a checkpoint first.
    """
    length = run.directives["length"]
    if run.killed:
        return [{"kind": "exited", "reason": "killed"}]
    if run.directives["preempt"]:
        return [*checkpoint(run, 1), {"kind": "exited", "reason": "preempted"}]
    lines: list[Line] = [{"kind": "container", "state": "RUNNING"}]
    lines += [
        {
            "kind": "metrics",
            "group": "validation",
            "steps_completed": length,
            "metrics": {run.spec["metric"]: metric_of(run)},
        },
        {"kind": "completed", "length": length, "metric": metric_of(run)},
        {"kind": "exited", "reason": "completed" if run.directives["closed"] else "idle"},
    ]
    return lines


def checkpoint(run: Run, steps: int) -> list[Line]:
    """Return the report line of a complete checkpoint at `steps` batches."""
    trial_id, epoch = run.allocation.split(".")
    uuid = f"{int(trial_id):08x}-{int(epoch):04x}-4000-8000-{steps:012x}"
    path = f"{run.spec['experiment_id']}/{trial_id}/{epoch}/{uuid}"
    line = {"uuid": uuid, "steps_completed": steps, "path": path, "size_bytes": 8, "files": 1}
    return [{"kind": "checkpoint", **line, "manifest_sha256": "0" * 64, "metadata": {}}]


def metric_of(run: Run) -> float:
    """Return the sum of the trial's float hyperparameters as the metric."""
    return round(sum(v for v in run.spec["hparams"].values() if isinstance(v, float)), 6)
