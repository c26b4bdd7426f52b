"""Keeps a cluster busy with small searches under a kill every 30 seconds.

No accepted data may be lost, and the memory of server and agent must stay flat.
python -m tests.end_to_end.soak --minutes 60 --seed 1
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from detcloud.client import Trial
from detcloud.shared.processes import pss_bytes
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.strikes import Kill, KillRecord, Revival, Target, draw_kills, strike
from tests.end_to_end.tiny_model import BATCHES, write_model
from tests.patience import poll_until, wait_until

KILL_EVERY_SECONDS = 30.0
SAMPLE_EVERY_SECONDS = 2.0
# The number of searches of two trials that wait or run at any time, on two slots.
OPEN_SEARCHES = 3
BATCH_SECONDS = 0.2
END_SECONDS_MAX = 180.0
# The last third of the samples may lie above the first third by this much: noise, and caches that
# fill in the first minutes.
GROWTH_MAX = 1.15
GROWTH_BYTES_MAX = 8 * 1024 * 1024


class Sample(NamedTuple):
    """The memory of each process at a moment (proportional set size, bytes)."""

    seconds: float
    server: int
    agent: int


@dataclass
class Soak:
    """Events so far: `searches` were submitted and verified, `wrong` has a line for each loss."""

    searches: int = 0
    struck: list[KillRecord] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def verdict(self) -> list[str]:
        """Return a line for each fault."""
        return [*self.wrong, *_memory_growth(self.samples)]


def main() -> int:
    """Run the soak; return 0 if no data were lost and memory stayed flat, else 1."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="detcloud-soak-"))
    found = soak(folder, options.minutes * 60, options.seed)
    print(report(found))
    wrong = found.verdict()
    print("\n".join(wrong) if wrong else "PASSED: nothing was lost, memory is flat")
    if wrong:
        print(f"FAILED: the home is kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def soak(
    folder: Path, seconds: float, seed: int, kill_every_seconds: float = KILL_EVERY_SECONDS
) -> Soak:
    """Run the load for `seconds`, wait for all searches to end and verify each search."""
    laptop = Laptop(folder / "home")
    found = Soak()
    try:
        laptop.run("up", "--slots", 2)
        count = int(seconds / kill_every_seconds) + 1
        soaking = _Soaking(laptop, folder, found)
        soaking.run(seconds, _kills(count, seed), kill_every_seconds)
    except BaseException:
        laptop.end()
        raise
    found.wrong += [f"outlived `detcloud down`: {left.command}" for left in laptop.end()]
    return found


def report(found: Soak) -> str:
    """Return a summary, with the memory in the first and the last third of the time."""
    hits = {target: 0 for target in Target}
    for one in found.struck:
        hits[one.kill.target] += 1
    kills = ", ".join(f"{count} {target}" for target, count in hits.items() if count)
    lines = [f"{found.searches} searches under {len(found.struck)} kills ({kills})"]
    for name in ("server", "agent"):
        first, last = _thirds(found.samples, name)
        lines.append(f"{name}: {first / 1e6:.1f} MB in the first third, {last / 1e6:.1f} MB last")
    return "\n".join(lines)


class _Soaking:
    """A cluster under load; `open` has the unverified searches by id."""

    def __init__(self, laptop: Laptop, folder: Path, found: Soak) -> None:
        self._laptop = laptop
        self._config, self._model = write_model(folder, BATCH_SECONDS, max_restarts=1000)
        self._found = found
        self._open: set[int] = set()
        self._ended: dict[int, str] = {}
        self._seeds = itertools.count(1)

    def run(self, seconds: float, kills: Iterator[Kill], kill_every_seconds: float) -> None:
        began = time.monotonic()
        kill_at = began + kill_every_seconds
        while time.monotonic() < began + seconds:
            self._refill()
            self._sample(time.monotonic() - began)
            if time.monotonic() >= kill_at:
                self._strike(next(kills), began)
                kill_at += kill_every_seconds
            time.sleep(SAMPLE_EVERY_SECONDS)
        self._settle()

    def _refill(self) -> None:
        self._verify()
        while len(self._open) < OPEN_SEARCHES:
            seed = f"reproducibility.experiment_seed={next(self._seeds)}"
            created = self._laptop.json("create", self._config, self._model, "--config", seed)
            self._open.add(int(created["id"]))
            self._found.searches += 1

    def _strike(self, kill: Kill, began: float) -> None:
        # The turn of a trial waits until a trial runs.
        struck = wait_until(lambda: strike(self._laptop, kill, began), END_SECONDS_MAX)
        assert struck is not None
        self._found.struck.append(struck)
        print(f"{struck.at_seconds:6.0f} s  {kill.target:10}  {struck.victims}", flush=True)

    def _settle(self) -> None:
        """Wait for open searches, and check that ended searches are unchanged."""
        wrong = self._found.wrong
        try:
            poll_until(self._is_settled, END_SECONDS_MAX, lambda: f"ends of {self._open}", 1.0)
        except AssertionError as error:
            wrong.append(str(error))
        with self._laptop.cluster() as cluster:
            states = {one.id: one.state for one in cluster.experiments()}
        wrong += [
            f"experiment {number} was {state} and is {states.get(number)}"
            for number, state in self._ended.items()
            if states.get(number) != state
        ]

    def _is_settled(self) -> bool:
        self._verify()
        return not self._open

    def _verify(self) -> None:
        with self._laptop.cluster() as cluster:
            for number in sorted(self._open):
                experiment = cluster.experiment(number)
                if not experiment.has_ended:
                    continue
                self._open.remove(number)
                self._ended[number] = experiment.state
                wrong = [
                    f"experiment {number}, trial {trial.id}: {line}"
                    for trial in experiment.trials()
                    for line in _faults(trial)
                ]
                if experiment.state != "COMPLETED" or experiment.data["trials"]["completed"] != 2:
                    wrong.append(f"experiment {number} is {experiment.data}")
                self._found.wrong += wrong

    def _sample(self, seconds: float) -> None:
        record = self._laptop.record()
        sizes = [pss_bytes(record.get(name) or 0) for name in ("pid", "agent_pid")]
        if None not in sizes:
            self._found.samples.append(Sample(seconds, *(size or 0 for size in sizes)))


def _faults(trial: Trial) -> list[str]:
    """Return the faults of a trial's reports.

    Each batch must report once, in order, and the log must be complete.
    """
    faults = []
    steps: dict[str, list[int]] = {"training": [], "validation": []}
    for report in trial.metrics():
        steps[report["group"]].append(report["steps_completed"])
    if steps != {"training": list(range(1, BATCHES + 1)), "validation": [BATCHES]}:
        faults.append(f"its metrics are of {steps}")
    if trial.state != "COMPLETED" or trial.metric != trial.hparams["x"] ** 2:
        faults.append(f"it is {trial.state} with {trial.metric} for {trial.hparams}")
    log = "".join(trial.logs())
    if f"stops at {BATCHES}" not in log:
        faults.append(f"its log ends with {log[-200:]!r}")
    return faults


def _kills(count: int, seed: int) -> Iterator[Kill]:
    """Yield kills in random order, with equally many for each target."""
    kills = draw_kills(count, seed, list(Target))
    random.Random(seed).shuffle(kills)
    # `create` would add searches while reviving the server.
    for kill in kills:
        yield dataclasses.replace(kill, revival=Revival.UP)


def _memory_growth(samples: list[Sample]) -> Iterator[str]:
    for name in ("server", "agent"):
        first, last = _thirds(samples, name)
        if last > max(first * GROWTH_MAX, first + GROWTH_BYTES_MAX):
            yield f"the {name} grew from {first / 1e6:.1f} to {last / 1e6:.1f} MB"


def _thirds(samples: list[Sample], name: str) -> tuple[float, float]:
    """Return the medians of the first and the last third of the samples, in bytes."""
    sizes = [int(getattr(sample, name)) for sample in samples]
    third = max(1, len(sizes) // 3)
    return (median(sizes[:third]), median(sizes[-third:])) if sizes else (0.0, 0.0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
