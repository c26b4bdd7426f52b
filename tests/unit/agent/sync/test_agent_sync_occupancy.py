"""The use of the machine by people in enrolments and sync calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from detcloud.agent.health.machine_fault import MachineFault
from detcloud.agent.people.people_watch import Occupancy
from detcloud.agent.sync.enrolment import AgentIdentity
from detcloud.agent.sync.schedule import SyncSchedule
from detcloud.agent.sync.session import Session
from detcloud.shared.http import Transport
from tests.unit.agent.sync.test_agent_sync_session import HastySchedule, _adopting_node

USED = Occupancy("somebody is logged in", "finish")
ENTRY = {"slot": None, "reason": "somebody is logged in", "people": "finish"}


class Recorder:
    """A cluster that records calls, and runs the next of `steps` after each sync."""

    def __init__(self, schedule: SyncSchedule) -> None:
        self.schedule = schedule
        self.enrolments: list[dict[str, Any]] = []
        self.reports: list[Any] = []
        self.steps: list[Any] = []

    def request(self, method: str, path: str, body: Any, **_: object) -> dict[str, Any]:
        if path.endswith("/agents"):
            self.enrolments.append(body)
            return {"agent_id": "node", "epoch": 1, "lease_ms": 30_000, "token": "dct_x"}
        self.reports.append(json.loads(body).get("faults", "unchanged"))
        if self.steps:
            self.steps.pop(0)()
        else:
            self.schedule.stop()
        return {"acked": {}, "logs_acked": {}, "revision": 1, "desired": [], "next_sync_ms": 0}

    def close(self) -> None:
        pass


def session_with(tmp_path: Path) -> tuple[Session, Recorder]:
    schedule = HastySchedule()
    cluster = Recorder(schedule)
    identity = AgentIdentity("node", "default", [], "1", "", "127.0.0.1")
    session = Session(
        "http://cluster",
        "dct_join",
        identity,
        _adopting_node(tmp_path),
        schedule,
        lambda line: None,
        open_transport=lambda url, token: cast(Transport, cluster),
    )
    return session, cluster


def test_use_is_reported_at_the_enrolment_and_until_its_end(tmp_path: Path) -> None:
    session, cluster = session_with(tmp_path)
    session.report_occupancy(USED)
    fault = MachineFault(0, "Xid 79")
    cluster.steps = [
        lambda: session.report_faults([fault]),
        lambda: session.report_occupancy(None),
        lambda: None,
    ]
    session.run()
    (enrolment,) = cluster.enrolments
    assert enrolment["occupancy"] == {"reason": USED.reason, "running": "finish"}
    both = [{"slot": 0, "reason": "Xid 79"}, ENTRY]
    assert cluster.reports == [[ENTRY], both, both[:1], "unchanged"]


def test_machine_without_people_reports_no_use(tmp_path: Path) -> None:
    session, cluster = session_with(tmp_path)
    session.run()
    assert "occupancy" not in cluster.enrolments[0]
    assert cluster.reports == [[]]
