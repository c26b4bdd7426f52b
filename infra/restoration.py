"""The request and the report of a restore of a deployed cluster's state."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from infra.drain_clock import Clock


class RestoreFailed(Exception):
    """The state could not be restored; the message is for users. The same call continues."""


@dataclass(frozen=True)
class RestoreRequest:
    """The state to restore. Without `time` and `source`, the newest backup of a lost store."""

    time: datetime | None = None
    """The moment to restore, in UTC, from the point-in-time recovery; None for `source`."""
    source: str = ""
    """The name of a backup or of an export in the form of the cloud; empty for `time`."""


@dataclass(frozen=True)
class RestoreReport:
    """The outcome of a restore."""

    written: int
    """The rows that were written; 0 if the cloud restored the whole store."""
    deleted: int
    """The rows that were deleted, because the restored state does not have them."""
    experiments: int
    """The experiments that have not ended."""
    agents: int
    """The agents that were marked as lost."""
    incarnation: str
    """The name of the new incarnation of the state."""
    is_new_store: bool
    """Whether the store is a new one, which a deployment must connect to the functions."""


@dataclass(frozen=True)
class FilesReport:
    """The outcome of a restore of checkpoint files."""

    intact: int
    """The checkpoints with all files before."""
    restored: tuple[str, ...]
    """The folders of the checkpoints that have all files again."""
    files: int
    """The number of restored files."""
    lost: tuple[str, ...]
    """The folders of the checkpoints that still lack files."""


@dataclass(frozen=True)
class ObjectsReport:
    """The outcome of a restore of objects."""

    checkpoints: FilesReport
    """The checkpoints that the state names."""
    objects: int
    """The restored objects of code, logs, metrics and TensorBoard files."""


@dataclass
class Steps:
    """The progress of a restore. Each step is reported with the duration in seconds."""

    progress: Callable[[str], None]
    """Receives each line."""
    clock: Clock = field(default_factory=Clock)
    """Measures the steps."""

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Report the begin of a step, and after the block the duration in seconds.

        After an exception, only the begin is reported.
        """
        self.progress(f"{what} ...")
        begun = self.clock.seconds()
        yield
        self.progress(f"{what}: {self.clock.seconds() - begun:.1f} s")


def parse_time(text: str) -> datetime:
    """Return the moment that `text` names, in UTC; the form is that of ISO 8601 with a time zone.

    Raise RestoreFailed for any other text.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise RestoreFailed(
            f"--time is {text!r}: expected a moment with a time zone, like 2026-11-20T12:00:00Z"
        )
    return moment.astimezone(UTC)


def show_time(moment: datetime) -> str:
    """Return a moment in UTC like 2026-11-20T12:00:00Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
