"""Watches an experiment until it ends: a table redrawn in place, or a line for each change."""

from __future__ import annotations

import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import NamedTuple, TextIO

from detcloud.cli.experiment import experiment_argument, experiment_of, print_hint
from detcloud.cli.output import add_output_options, print_value
from detcloud.cli.progress import Progress
from detcloud.cli.table import Column, Item, cell_text, field, gist_text, text_table
from detcloud.cli.terminal import bar, counted, cut, has_colour, is_live, width_of
from detcloud.cli.trial import hparams_text, shown_state
from detcloud.client import Experiment

POLLING_SECONDS_FIRST = 0.2
POLLING_SECONDS_MAX = 2.0
# Of an experiment so large that its trials take long to list, this share of the time is spent so.
POLLING_SHARE_MAX = 0.2
BAR_CELLS = 10
_STATE_ORDER = {"RUNNING": 0, "STARTING": 1, "PULLING": 2, "ASSIGNED": 3, "TERMINATING": 4}


class Snapshot(NamedTuple):
    """An experiment and its trials at one moment."""

    experiment: Item
    trials: list[Item]


def follow_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    add_output_options(parser, csv=False)


def follow(arguments: Namespace) -> int:
    return follow_experiment(experiment_of(arguments), form=arguments.form)


def follow_experiment(experiment: Experiment, *, form: str = "text") -> int:
    """Returns 0 when the experiment completed and 1 when it ended otherwise, 130 on Ctrl-C.

    As `json` or `yaml` nothing but the ended experiment is printed.
    """
    view = _view(form)
    try:
        last = _watch(experiment, view)
    except KeyboardInterrupt:
        print(
            f"\nexperiment {experiment.id} goes on; come back with "
            f"`detcloud follow {experiment.id}`, end it with `detcloud kill {experiment.id}`",
            file=sys.stderr,
        )
        return 130
    finally:
        view.close()
    view.end(last)
    if form == "text":
        print_hint(experiment)
    return 0 if last.experiment["state"] == "COMPLETED" else 1


def changes(before: Snapshot | None, after: Snapshot) -> list[str]:
    """A line for each trial whose state or metric differs, and one for the experiment's state."""
    metric = after.experiment.get("metric") or "metric"
    known = {trial["id"]: trial for trial in before.trials} if before else {}
    lines = []
    for trial in after.trials:
        if _news(known.get(trial["id"])) != _news(trial):
            lines.append(_trial_line(trial, str(metric)))
    state = after.experiment["state"]
    if before is None or before.experiment["state"] != state:
        lines.append(f"experiment {after.experiment['id']}: {state}")
    return lines


def frame(snapshot: Snapshot, width: int | None, height: int, colour: bool) -> str:
    """What a screen of `height` lines shows: the experiment's line and the liveliest trials."""
    shown_max = max(1, height - 5)
    trials = sorted(snapshot.trials, key=_liveliness)[:shown_max]
    hidden = len(snapshot.trials) - len(trials)
    table = text_table(_columns(snapshot.experiment), trials, width, colour)
    more = [f" ... and {counted(hidden, 'more trial')}"] if hidden else []
    head = _headline(snapshot.experiment)
    return "\n".join([head if width is None else cut(head, width), table, *more])


def summary(snapshot: Snapshot) -> list[str]:
    """The best validation with its trial, and why the experiment ended when it says so."""
    experiment = snapshot.experiment
    lines = []
    best = experiment.get("best_metric")
    if best is not None:
        number = experiment.get("best_trial_id")
        found = [trial for trial in snapshot.trials if trial["id"] == number]
        drawn = hparams_text(found[0]) if found else ""
        hparams = f": {drawn}" if drawn else ""
        name = experiment.get("metric") or "metric"
        lines.append(f"best {name} {cell_text(best)} in trial {number}{hparams}")
    message = experiment.get("message")
    reason = f": {gist_text(message)}" if message else ""
    return [*lines, f"experiment {experiment['id']} ended: {experiment['state']}{reason}"]


class _Quiet:
    def __init__(self, form: str) -> None:
        self._form = form
        self._progress = Progress("following")

    def show(self, snapshot: Snapshot) -> None:
        self._progress.tell(_headline(snapshot.experiment))

    def close(self) -> None:
        self._progress.close()

    def end(self, snapshot: Snapshot) -> None:
        print_value(snapshot.experiment, self._form)


class _Lines:
    def __init__(self) -> None:
        self._before: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        for line in changes(self._before, snapshot):
            print(line, flush=True)
        self._before = snapshot

    def close(self) -> None:
        return

    def end(self, snapshot: Snapshot) -> None:
        _print_end(snapshot)


class _Screen:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines = 0

    def show(self, snapshot: Snapshot) -> None:
        height = shutil.get_terminal_size().lines
        colour = has_colour(self._stream)
        text = frame(snapshot, width_of(self._stream), height, colour)
        self._replace(f"{text}\n")

    def close(self) -> None:
        return

    def end(self, snapshot: Snapshot) -> None:
        self._replace("")
        _print_end(snapshot)

    def _replace(self, text: str) -> None:
        up = f"\x1b[{self._lines}A" if self._lines else ""
        # One write, so that the terminal never shows half a frame.
        self._stream.write(f"{up}\r\x1b[J{text}")
        self._stream.flush()
        self._lines = text.count("\n")


def _view(form: str) -> _Quiet | _Lines | _Screen:
    if form != "text":
        return _Quiet(form)
    return _Screen(sys.stdout) if is_live(sys.stdout) else _Lines()


def _watch(experiment: Experiment, view: _Quiet | _Lines | _Screen) -> Snapshot:
    pause_seconds = POLLING_SECONDS_FIRST
    while True:
        started = time.monotonic()
        snapshot = Snapshot(experiment.data, [trial.data for trial in experiment.trials()])
        view.show(snapshot)
        if experiment.ended:
            return snapshot
        fetched_seconds = time.monotonic() - started
        time.sleep(max(pause_seconds, fetched_seconds / POLLING_SHARE_MAX))
        pause_seconds = min(POLLING_SECONDS_MAX, pause_seconds * 1.3)
        # The experiment first: once it has ended, the trials fetched after it are final too.
        experiment.refresh()


def _news(trial: Item | None) -> tuple[object, ...] | None:
    if trial is None:
        return None
    return shown_state(trial), trial.get("metric"), trial.get("restarts")


def _trial_line(trial: Item, metric: str) -> str:
    value = trial.get("metric")
    measured = f", {metric} {cell_text(value)}" if value is not None else ""
    failures = trial.get("restarts")
    failed = f", failed {counted(failures, 'time')}" if failures else ""
    steps = counted(trial.get("steps_completed") or 0, "step")
    return f"trial {trial['id']}: {shown_state(trial)}, {steps}{measured}{failed}"


def _headline(experiment: Item) -> str:
    progress = experiment.get("progress") or 0.0
    name = cell_text(experiment.get("name"))
    return (
        f"experiment {experiment['id']} {name}  {experiment['state']}  "
        f"{100 * progress:.0f}% {bar(progress)}"
    )


def _columns(experiment: Item) -> tuple[Column, ...]:
    return (
        field("Trial", "id"),
        field("Number", "number", spare=1),
        Column("State", shown_state),
        Column("Progress", _progress_text),
        field(str(experiment.get("metric") or "Metric"), "metric"),
        field("Best", "best_metric"),
        Column("Hyperparameters", hparams_text),
    )


def _progress_text(trial: Item) -> str:
    target = trial.get("target_steps") or 0
    done = trial.get("steps_completed") or 0
    return f"{bar(done / target if target else 0.0, BAR_CELLS)} {done}/{target}"


def _liveliness(trial: Item) -> tuple[int, int]:
    """Running trials first, then those waiting in their order, then the ended, newest first."""
    if trial.get("ended_ms") is not None:
        return 9, -trial["id"]
    return _STATE_ORDER.get(shown_state(trial), 5), trial["id"]


def _print_end(snapshot: Snapshot) -> None:
    trials = sorted(snapshot.trials, key=lambda trial: int(trial["id"]))
    columns = _columns(snapshot.experiment)
    print(text_table(columns, trials, width_of(sys.stdout), has_colour(sys.stdout)))
    print("\n".join(summary(snapshot)))
