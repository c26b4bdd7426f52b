"""Trains the digits undisturbed and again under SIGKILL; both runs must give equal results.

python -m tests.end_to_end.kills --kills 20 --seed 1
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from detcloud.cli.rendering.table import Column, field_column, render_table
from detcloud.client import Client
from detcloud.client.records import MetricReport
from tests.end_to_end.laptop import DIGITS, Laptop
from tests.end_to_end.outcome import Outcome, differences, outcome_of
from tests.end_to_end.strikes import (
    OF_SERVERS,
    PROGRESS_MAX,
    Kill,
    KillRecord,
    Target,
    draw_kills,
    strike,
)
from tests.patience import poll_until

CONFIG = DIGITS / "random.yaml"
EXPERIMENT = 1
END_SECONDS_MAX = 600.0
POLLING_SECONDS = 0.2
# Long enough for twenty sequential kills while trials continue. Each epoch validates and
# checkpoints, and a killed trial may restart without a limit. With the policy `best` the
# checkpoints would depend on the order of the trials.
OVERRIDES = (
    "searcher.max_length.epochs=45",
    "max_restarts=1000",
    "min_validation_period={epochs: 1}",
    "min_checkpoint_period={epochs: 1}",
    "checkpoint_policy=none",
)

COLUMNS = (
    field_column("Kill", "number"),
    Column("At", lambda item: _seconds(item["struck"].at_seconds)),
    Column("Target", lambda item: item["struck"].kill.target.value),
    Column("Victim", lambda item: item["struck"].victims),
    Column("Server back by", lambda item: _revival(item["struck"])),
    Column("in", lambda item: _seconds(item["struck"].server_seconds)),
    Column("Agent back in", lambda item: _seconds(item["struck"].agent_seconds)),
)


@dataclass
class Run:
    """A training of the search in a separate home.

    `losses` names accepted data that disappeared later, and processes that outlived `detcloud
    down`.
    """

    outcome: Outcome
    seconds: float
    struck: list[KillRecord] = dataclasses.field(default_factory=list)
    losses: list[str] = dataclasses.field(default_factory=list)


def main() -> int:
    """Run both trainings; return 0 if the results are equal and no process remained, else 1."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="detcloud-kills-"))
    overrides = [*OVERRIDES, *options.overrides]
    print(f"undisturbed run in {folder} ...", flush=True)
    expected = run(folder / "undisturbed", overrides)
    print(f"{len(expected.outcome.trials)} trials in {expected.seconds:.1f} s", flush=True)
    targets = [Target(name) for name in options.targets.split(",")]
    plan = draw_kills(options.kills, options.seed, targets, options.progress_max)
    found = run(folder / "killed", overrides, plan)
    print(f"again under {options.kills} kills, seed {options.seed}: {found.seconds:.1f} s")
    print(table(found.struck))
    wrong = verdict(expected, found, options.kills)
    print("\n".join(wrong) if wrong else _render_success(found))
    if wrong:
        print(f"FAILED: {len(wrong)} differences; both homes are kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def run(
    home: Path, overrides: Sequence[str], kills: Sequence[Kill] = (), model: Path = DIGITS
) -> Run:
    """Train once under `kills`, and stop the cluster."""
    home.parent.mkdir(exist_ok=True)
    laptop = Laptop(home)
    try:
        laptop.run("up", "--slots", 2)
        began = time.monotonic()
        given = [word for override in overrides for word in ("--config", override)]
        laptop.run("create", CONFIG, model, *given)
        disturbed = _DisturbedSearch(laptop, began)
        disturbed.suffer(kills)
        seconds = disturbed.wait_for_end()
        with laptop.cluster() as cluster:
            outcome = outcome_of(cluster, EXPERIMENT)
            losses = [*disturbed.losses, *_lost_experiments(cluster, disturbed.struck)]
    except BaseException:
        laptop.end()
        raise
    losses += [f"outlived `detcloud down`: {left.command}" for left in laptop.end()]
    return Run(outcome, seconds, disturbed.struck, losses)


def verdict(expected: Run, found: Run, kills: int) -> list[str]:
    """Return a line for each fault."""
    lines = differences(expected.outcome, found.outcome)
    lines += [f"undisturbed run: {line}" for line in expected.outcome.contradictions]
    lines += [f"undisturbed run: {line}" for line in expected.losses]
    lines += found.losses
    if len(found.struck) < kills:
        lines.append(f"the search ended after {len(found.struck)} of {kills} kills")
    return lines


def table(struck: Sequence[KillRecord]) -> str:
    """Return a table of the kills, a line for each."""
    items = [{"number": number, "struck": one} for number, one in enumerate(struck, 1)]
    return render_table(COLUMNS, items, None)


class _DisturbedSearch:
    """A running search; records the data that the cluster has accepted before each kill."""

    def __init__(self, laptop: Laptop, began: float) -> None:
        self.struck: list[KillRecord] = []
        self.losses: list[str] = []
        self._laptop = laptop
        self._began = began
        self._accepted: dict[int, tuple[list[MetricReport], str]] = {}

    def suffer(self, kills: Sequence[Kill]) -> None:
        """Kill the targets in sequence, until the search has ended."""
        for kill in kills:
            while self._completed_share() < kill.progress:
                time.sleep(POLLING_SECONDS)
            time.sleep(kill.pause_seconds)
            self._note_losses()
            struck = None
            while struck is None and self._completed_share() < inf:
                struck = strike(self._laptop, kill, self._began)
            if struck is None:
                return
            self.struck.append(struck)
            print(table(self.struck).splitlines()[-1], flush=True)

    def wait_for_end(self) -> float:
        """Wait for the end; return the seconds since the beginning."""
        try:
            has_ended: Callable[[], bool] = lambda: self._completed_share() == inf  # noqa: E731
            poll_until(has_ended, END_SECONDS_MAX, "the search's end", POLLING_SECONDS)
        except AssertionError as error:
            self.losses.append(str(error))
        seconds = time.monotonic() - self._began
        self._note_losses()
        return seconds

    def _completed_share(self) -> float:
        """Return the completed share of the search's batches; infinity after the end."""
        with self._laptop.cluster() as cluster:
            if cluster.experiment(EXPERIMENT).has_ended:
                return inf
            trials = [trial.data for trial in cluster.experiment(EXPERIMENT).trials()]
        wanted = sum(int(trial["target_steps"]) for trial in trials)
        return sum(int(trial["steps_completed"]) for trial in trials) / max(1, wanted)

    def _note_losses(self) -> None:
        """Record data as lost that the cluster showed before a kill and no longer shows."""
        with self._laptop.cluster() as cluster:
            for trial in cluster.experiment(EXPERIMENT).trials():
                # Reports after the checkpoint are hidden when the batches are trained again.
                kept = max(
                    (int(one.data["steps_completed"]) for one in trial.checkpoints()), default=0
                )
                metrics = list(trial.metrics())
                log = "".join(trial.logs())
                before_metrics, before_log = self._accepted.get(trial.id, ([], ""))
                lost = [report for report in before_metrics if report not in metrics]
                if lost:
                    self.losses.append(f"trial {trial.id} lost metrics: {lost}")
                if not log.startswith(before_log):
                    self.losses.append(f"trial {trial.id} lost log lines: {before_log!r}")
                safe = [report for report in metrics if report["steps_completed"] <= kept]
                self._accepted[trial.id] = (safe, log)


def _lost_experiments(cluster: Client, struck: Sequence[KillRecord]) -> list[str]:
    """Return a fault if experiments are missing that `create` submitted to revive the server."""
    created = [one for one in struck if one.server_seconds and one.kill.revival == "create"]
    expected = [(2 + index, "PAUSED") for index in range(len(created))]
    found = sorted((one.id, one.state) for one in cluster.experiments() if one.id != EXPERIMENT)
    return [] if found == expected else [f"experiments {found} instead of {expected}"]


def _revival(struck: KillRecord) -> str | None:
    kill = struck.kill
    if kill.target not in OF_SERVERS:
        return None
    return f"{kill.revival.value} after {kill.outage_seconds:.1f} s"


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.2f} s"


def _render_success(found: Run) -> str:
    trials = len(found.outcome.trials)
    return (
        f"PASSED: {len(found.struck)} kills, {found.outcome.restarts} restarts, and the states, "
        f"hyperparameters, metrics and weights of {trials} trials are those of the undisturbed run"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", default=",".join(Target), help="of the kills, with commas")
    parser.add_argument("--progress-max", type=float, default=PROGRESS_MAX, help="of the search")
    parser.add_argument(
        "--config", dest="overrides", action="append", default=[], metavar="KEY=VALUE"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
