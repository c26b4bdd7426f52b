"""Where notice of an approaching end of this machine comes from."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from detcloud.agent.directory import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# AWS asks for a look every five seconds; each later one is taken from the trials' two minutes.
LOOK_SECONDS = 2.0
INTERRUPTION_MS = 120_000
ACTION = "latest/meta-data/spot/instance-action"
ADVICE = "latest/meta-data/events/recommendations/rebalance"


@dataclass(frozen=True, slots=True)
class Notice:
    """The machine ends at `deadline_ms` (epoch milliseconds)."""

    deadline_ms: int
    reason: str


class NoticeSource(Protocol):
    """Answers whether an end was announced. Called twice a second; must not block or raise.

    `advised`: it has become likely.
    """

    @property
    def advised(self) -> bool: ...

    def poll(self) -> Notice | None:
        """The notice that stands now, None without one."""


class FileNotices:
    """A notice in a JSON file, `{"deadline_ms": int, "reason": str}`: local clusters, tests."""

    advised = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def poll(self) -> Notice | None:
        """The file's notice; a file that says something else is no notice."""
        found = read_object(self._path)
        if found is None or not isinstance(found.get("deadline_ms"), int):
            return None
        return Notice(found["deadline_ms"], str(found.get("reason") or "interruption notice"))


class Metadata(Protocol):
    """What the cloud tells a machine about itself."""

    def get(self, path: str) -> str | None:
        """What is at `path`, None if nothing is. Raises an exception without an answer."""


class Ec2Notices:
    """The interruption of a spot instance, as its metadata announces it.

    A thread looks, since an answer may take its time. Without an answer what was known stands: who
    was told of its end does not forget it because the machine is busy ending.
    """

    def __init__(self, metadata: Metadata, look_seconds: float = LOOK_SECONDS) -> None:
        self._metadata = metadata
        self._look_seconds = look_seconds
        self._notice: Notice | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
        # EC2 advises to leave this machine, for its end has become likely: no deadline, so nothing
        # that runs here is stopped for it.
        self.advised = False

    def start(self) -> Ec2Notices:
        """Begins to look."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        self._thread.join()

    def poll(self) -> Notice | None:
        """What was known at the last look."""
        return self._notice

    def _run(self) -> None:
        while True:
            # Whatever goes wrong with one look, the next may be the one that matters.
            with contextlib.suppress(Exception):
                self._look()
            if self._stopped.wait(self._look_seconds):
                return

    def _look(self) -> None:
        action = self._metadata.get(ACTION)
        if action is None:
            self._notice = None
        elif self._notice is None:
            self._notice = _interruption(action)
        self.advised = self._metadata.get(ADVICE) is not None


def _interruption(text: str) -> Notice:
    """A notice that cannot be read is one all the same, as short as they come."""
    action, deadline_ms = "terminate", time.time_ns() // 1_000_000 + INTERRUPTION_MS
    try:
        found = json.loads(text)
        action = str(found["action"])
        at = datetime.strptime(found["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        deadline_ms = int(at.timestamp() * 1000)
    except (ValueError, TypeError, KeyError):
        pass
    return Notice(deadline_ms, f"EC2 takes this spot instance away ({action})")


def with_notice(directives: Mapping[str, Any], notice: Notice | None) -> dict[str, Any]:
    """The cluster's directives with this machine's notice in them: the earlier deadline counts."""
    if notice is None:
        return dict(directives)
    preempt = directives.get("preempt")
    deadline = preempt.get("deadline_ms") if isinstance(preempt, dict) else None
    if isinstance(deadline, int) and deadline <= notice.deadline_ms:
        return dict(directives)
    return {
        **directives,
        "preempt": {"deadline_ms": notice.deadline_ms, "reason": notice.reason},
    }
