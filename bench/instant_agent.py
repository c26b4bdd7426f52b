"""An agent without processes that reports each allocation as completed at once."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from control_plane.agents.reports import Report
from control_plane.agents.service import AgentService
from control_plane.agents.sync_acceptance import SyncRequest

NAME = "bench"


class InstantAgent:
    """An agent of `pool` with `slots` slots that uses the real sync call."""

    def __init__(self, service: AgentService, pool: str, slots: int, name: str = NAME) -> None:
        self._service = service
        self._name = name
        held = tuple((n, "cpu", f"{name}-{n}", "cpu") for n in range(slots))
        self._epoch = service.enrol(name, pool, held, "1")
        self._known: dict[str, None] = {}
        self._reports: list[Report] = []

    def work(self, over: Callable[[], bool], tick: Callable[[], object]) -> None:
        """Sync until `over` returns true and no allocations are left. Call `tick` when no reports
        are pending.
        """
        self._sync()
        while self._known or not over():
            if not self._reports:
                tick()
            self._sync()

    def _sync(self) -> None:
        request = SyncRequest(self._epoch, tuple(self._known), tuple(self._reports))
        answer = self._service.sync(self._name, request)
        self._reports = []
        for entry in answer.desired:
            allocation = entry["allocation"]
            if entry["state"] == "run" and allocation not in self._known:
                self._known[allocation] = None
                self._reports += _life(allocation, entry)
            elif entry["state"] == "forget":
                del self._known[allocation]


def _life(allocation: str, entry: Mapping[str, Any]) -> Iterator[Report]:
    """Yield all reports of a trial and its container: running, validation, completion and exit."""
    trial_id, epoch = map(int, allocation.split("."))
    for (writer, offset), line in end_of_trial(entry).items():
        yield Report(trial_id, epoch, writer, offset, line)


def end_of_trial(entry: Mapping[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the lines of a trial that completes at once, by writer and number of the line."""
    spec, directives = entry["spec"], entry["directives"]
    length, metric = directives["length"], sum(spec["hparams"].values())
    return {
        ("agent", 1): {"kind": "container", "state": "RUNNING"},
        ("0", 1): {
            "kind": "metrics",
            "group": "validation",
            "steps_completed": length,
            "metrics": {spec["metric"]: metric},
        },
        ("0", 2): {"kind": "completed", "length": length, "metric": metric},
        ("agent", 2): {
            "kind": "exited",
            "reason": "completed" if directives["closed"] else "idle",
        },
    }
