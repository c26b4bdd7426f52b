"""The phases of storing and deleting checkpoints, and kills at drawn moments of each phase.

A victim records each phase that it enters. The kill is a timer of the kernel that the victim starts
at the begin of the drawn phase. Short and long phases are therefore hit equally well, on a busy
machine too. The signal has no handler: as with SIGKILL, the process ends between two instructions.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from control_plane.checkpoint_gc.stores import Stores
from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.storage import CheckpointStore

# Phases of a trial: opening the store and fetching the checkpoint, filling a folder, sending a
# file, sending a part, and the manifest with the report.
RESTORE, SAVE, UPLOAD, LARGE_UPLOAD, COMMIT = "restore", "save", "upload", "large upload", "commit"
# The phase of a server that records a trial's report.
RECORD = "record"
# Phases of a collector: reading and writing rows, and removing the files of a checkpoint.
GC_ROWS, GC_FILES = "gc rows", "gc files"
TRIAL_PHASES = (RESTORE, SAVE, UPLOAD, LARGE_UPLOAD, COMMIT)
COLLECTOR_PHASES = (GC_ROWS, GC_FILES)
PHASES = (*TRIAL_PHASES, RECORD, *COLLECTOR_PHASES)
KILL = signal.SIGALRM

# The assumed duration of a phase before an end was observed.
SECONDS_FIRST = 0.01
# A phase that always ends in a kill is never observed to end, and so is assumed to be longer.
GROWTH = 1.5
# The number of remembered durations of a phase; files vary in size.
DURATIONS_MAX = 8
# A timer of 0 seconds never fires.
SECONDS_LEAST = 1e-6
# Stores send files beyond 8 MiB in parts.
LARGE_BYTES = 9 << 20

_END = "end"

Enter = Callable[[str], None]
"""A function that a victim calls when it enters the phase of that name."""


@dataclass(frozen=True)
class Moment:
    """A moment for a kill, `seconds` after a process enters a phase.

    `entries_before` is the number of earlier entries of the phase by this process.
    """

    phase: str
    entries_before: int
    seconds: float


class PhaseJournal:
    """The phases that a process enters, as lines of a file that outlasts the process.

    At the `moment` the process is killed, if the moment comes.
    """

    def __init__(self, path: Path, moment: Moment | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._moment = moment
        self._entered: Counter[str] = Counter()

    def enter(self, phase: str) -> None:
        """Record that the process enters a phase; start the timer if this is the drawn moment."""
        moment = self._moment
        os.write(self._file, f"{time.monotonic()} {phase}\n".encode())
        if moment and (phase, self._entered[phase]) == (moment.phase, moment.entries_before):
            signal.setitimer(signal.ITIMER_REAL, max(SECONDS_LEAST, moment.seconds))
        self._entered[phase] += 1

    def end(self) -> None:
        """Record that the work is done, and cancel the kill."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.enter(_END)


def read_journal(path: Path) -> list[tuple[float, str]]:
    """Return the time, in seconds, and the name of each phase in a journal.

    A truncated last line is omitted: the kill came at the entry of the phase.
    """
    text = path.read_text() if path.exists() else ""
    lines = [line.partition(" ") for line in text.split("\n")[:-1]]
    return [(float(at), phase) for at, _, phase in lines]


class MomentDrawer:
    """A source of random moments: phases equally often, then a time within an observed duration.

    Durations are observed in processes that were not killed.
    """

    def __init__(self, draw: random.Random) -> None:
        self._random = draw
        self._seconds: dict[str, deque[float]] = {}
        self._left: dict[tuple[str, ...], list[str]] = {}

    def draw(self, entries_max: Mapping[str, int]) -> Moment:
        """Draw a moment in a phase of `entries_max`, which has the most earlier entries of each
        phase.
        """
        left = self._left.setdefault(tuple(entries_max), [])
        if not left:
            left += self._random.sample(list(entries_max), len(entries_max))
        phase = left.pop()
        seconds = self._random.uniform(0, self._random.choice(self._durations(phase)))
        return Moment(phase, self._random.randint(0, entries_max[phase]), seconds)

    def learn(self, journal: list[tuple[float, str]]) -> None:
        """Record the durations of the phases of a process."""
        for (began, phase), (ended, _) in pairwise(journal):
            self._durations(phase).append(ended - began)
        if journal and journal[-1][1] != _END:
            durations = self._durations(journal[-1][1])
            durations.append(durations[-1] * GROWTH)

    def _durations(self, phase: str) -> deque[float]:
        return self._seconds.setdefault(phase, deque([SECONDS_FIRST], DURATIONS_MAX))


@dataclass
class KillCounts:
    """The kills by the interrupted phase, and the surviving checkpoints."""

    phases: Counter[str] = field(default_factory=Counter)
    checkpoints: int = 0
    incomplete: int = 0

    def count(self, journal: list[tuple[float, str]], first: str) -> None:
        """Count a kill by the last phase in the victim's journal, `first` before any."""
        self.phases[journal[-1][1] if journal else first] += 1

    @property
    def total(self) -> int:
        """Return the number of all kills."""
        return self.phases.total()

    @property
    def of_collectors(self) -> int:
        """Return the number of killed collectors."""
        return sum(self.phases[phase] for phase in COLLECTOR_PHASES)

    def check_spread(self, phases: tuple[str, ...], share_min: float) -> None:
        """Raise AssertionError if a phase has less than `share_min` of all kills."""
        least = share_min * self.total
        few = [phase for phase in phases if self.phases[phase] < least]
        assert not few, f"fewer than {least:.0f} kills in {few}: {self}"

    def __str__(self) -> str:
        counts = ", ".join(f"{phase} {self.phases[phase]:,}" for phase in PHASES)
        return (
            f"{self.total:,} kills ({counts}); {self.checkpoints:,} checkpoints survived, "
            f"{self.incomplete:,} uploads were cut short"
        )


class MarkedStore:
    """A trial's store that announces the phase which each file begins."""

    def __init__(self, store: CheckpointStore, enter: Enter) -> None:
        self._store = store
        self._enter = enter

    @property
    def root(self) -> Path | None:
        return self._store.root

    def put(self, key: str, source: Path) -> None:
        if key.endswith(f"/{MANIFEST}"):
            self._enter(COMMIT)
        else:
            is_large = source.stat().st_size >= LARGE_BYTES
            self._enter(LARGE_UPLOAD if is_large else UPLOAD)
        self._store.put(key, source)

    def get(self, key: str, destination: Path) -> None:
        self._store.get(key, destination)

    def list(self, prefix: str) -> dict[str, int]:
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._store.delete(key)


@dataclass(frozen=True)
class MarkedStores(Stores):
    """A collector's stores that announce the removal of files."""

    enter: Enter = lambda phase: None

    def checkpoint_files(self, experiment_id: int, *, purge: bool = False) -> CheckpointFiles:
        files: Any = _MarkedFiles(super().checkpoint_files(experiment_id, purge=purge), self.enter)
        return files  # type: ignore[no-any-return]


class _MarkedFiles:
    """The files of a store, with a phase for removals."""

    def __init__(self, files: CheckpointFiles, enter: Enter) -> None:
        self._files = files
        self._enter = enter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
        self._enter(GC_FILES)
        yield from self._files.remove_folder(parts, prune=prune)
        self._enter(GC_ROWS)
