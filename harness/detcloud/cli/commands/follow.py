"""`detcloud follow`: watches an experiment until the end, by a table or a line for each change."""

from __future__ import annotations

import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import NamedTuple, TextIO

from detcloud.cli.framework import polling
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import INTERRUPTED
from detcloud.cli.framework.session import add_experiment_argument, load_experiment
from detcloud.cli.rendering.columns import hparams_text
from detcloud.cli.rendering.conditions import CONDITION, condition_text
from detcloud.cli.rendering.hints import print_failure_hint
from detcloud.cli.rendering.output import add_output_options, print_value
from detcloud.cli.rendering.progress import Progress
from detcloud.cli.rendering.state_sentences import state_sentence
from detcloud.cli.rendering.table import (
    Column,
    Item,
    cell_text,
    field_column,
    render_table,
    shorten_message,
)
from detcloud.cli.rendering.terminal import (
    has_colour,
    is_live,
    progress_bar,
    terminal_width,
    truncate,
)
from detcloud.client import Experiment
from detcloud.shared.plurals import count_text

POLLING_SECONDS_MAX = 2.0
BAR_CELLS = 10
_CONDITION_ORDER = {"running": 0, "starting": 1, "preempted": 2, "stopping": 3, "pausing": 4}


class Snapshot(NamedTuple):
    """The fields of an experiment and its trials at a moment."""

    experiment: Item
    """The experiment's fields in the API."""
    trials: list[Item]
    """The fields of all trials in the API."""


def add_follow_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `run_follow`: EXPERIMENT and the output form (`--json` or `--yaml`)."""
    add_experiment_argument(parser)
    add_output_options(parser, csv=False)


def run_follow(arguments: Namespace) -> int:
    """Follow the experiment of the argument EXPERIMENT by `follow_experiment`, and return the exit
    code.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or another
            request failed.
    """
    return follow_experiment(load_experiment(arguments), form=arguments.form)


def follow_experiment(experiment: Experiment, *, form: str = "text") -> int:
    """Show an experiment until the experiment ends. Return 0 if the experiment completed, otherwise
    1.

    The wait has no limit. As text, a terminal shows a redrawn table, and a file or a pipe gets a
    line for each change. At the end, the trials and a summary are printed to stdout, and a hint on
    a failure to stderr. Ctrl-C leaves the experiment running, prints a notice to stderr and returns
    INTERRUPTED.

    Args:
        experiment: the experiment, whose fields are updated.
        form: `text`, or `json` or `yaml`, which print only the ended experiment, after a progress
            line on stderr.

    Raises:
        DetcloudError: the cluster does not answer or refuses a request.
    """
    view = _select_view(form)
    try:
        last = _watch(experiment, view)
    except KeyboardInterrupt:
        print(
            f"\nexperiment {experiment.id} continues; watch it "
            f"again with `detcloud follow {experiment.id}`, stop it with `detcloud kill "
            f"{experiment.id}`",
            file=sys.stderr,
        )
        return INTERRUPTED
    finally:
        view.close()
    view.end(last)
    if form == "text":
        print_failure_hint(experiment)
    return 0 if last.experiment["state"] == "COMPLETED" else 1


def change_lines(before: Snapshot | None, after: Snapshot) -> list[str]:
    """Return a line for each trial with a new state, metric or number of restarts. A last line has
    a new state of the experiment.

    New steps alone give no line. Without changes, the list is empty. With None as `before`, return
    lines for all trials and the experiment.
    """
    metric = after.experiment.get("metric") or "metric"
    known = {trial["id"]: trial for trial in before.trials} if before else {}
    lines = []
    for trial in after.trials:
        if _shown_values(known.get(trial["id"])) != _shown_values(trial):
            lines.append(_trial_line(trial, str(metric)))
    state = condition_text(after.experiment)
    if before is None or condition_text(before.experiment) != state:
        lines.append(f"experiment {after.experiment['id']}: {state}")
    return lines


def render_frame(snapshot: Snapshot, width: int | None, height: int, colour: bool) -> str:
    """Return a screen of at most `height` lines with the experiment and the most active trials.

    At least a single trial is shown, even if `height` is smaller. If trials are hidden, the last
    line counts the hidden trials. Without trials, the table has only titles.

    Args:
        width: the maximum width in cells; None for no limit. Columns are omitted or cut to fit.
        height: the number of lines of the terminal.
        colour: whether to colour the names of states.
    """
    trials_max = max(1, height - 5)
    trials = sorted(snapshot.trials, key=_activity_rank)[:trials_max]
    hidden = len(snapshot.trials) - len(trials)
    table = render_table(_columns(snapshot.experiment), trials, width, colour)
    more = [f" ... and {count_text(hidden, 'more trial')}"] if hidden else []
    head = _headline(snapshot.experiment)
    return "\n".join([head if width is None else truncate(head, width), table, *more])


def summary_lines(snapshot: Snapshot) -> list[str]:
    """Return a line with the best metric, trial and hyperparameters, and a line with the
    experiment's state and message.

    The first line is omitted without a metric. A long message of the experiment is shortened.
    """
    experiment = snapshot.experiment
    lines = []
    best = experiment.get("best_metric")
    if best is not None:
        number = experiment.get("best_trial_id")
        best_trials = [trial for trial in snapshot.trials if trial["id"] == number]
        values = hparams_text(best_trials[0]) if best_trials else ""
        hparams = f": {values}" if values else ""
        name = experiment.get("metric") or "metric"
        lines.append(f"best {name} {cell_text(best)} in trial {number}{hparams}")
    message = experiment.get("message")
    reason = f": {shorten_message(message)}" if message else ""
    end = state_sentence(f"experiment {experiment['id']}", experiment["state"])
    return [*lines, f"{end}{reason}"]


class _SilentView:
    """A view that shows a progress line on stderr, and finally prints the experiment as JSON or
    YAML. `_watch` calls `show` for each snapshot; `close` follows also after an error, and then
    `end` unless the watch was interrupted.
    """

    def __init__(self, form: str) -> None:
        self._form = form
        self._progress = Progress("following")

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the progress line on stderr with the experiment's state and progress."""
        self._progress.show_wait(_headline(snapshot.experiment))

    def close(self) -> None:
        """Erase the progress line."""
        self._progress.close()

    def end(self, snapshot: Snapshot) -> None:
        """Print the fields of the ended experiment to stdout."""
        print_value(snapshot.experiment, self._form)


class _LineView:
    """A view that prints a line for each change. `close` does nothing."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Print the changes since the last snapshot to stdout; the first snapshot prints all
        trials. Flush each line.
        """
        for line in change_lines(self._before, snapshot):
            print(line, flush=True)
        self._before = snapshot

    def close(self) -> None:
        return

    def end(self, snapshot: Snapshot) -> None:
        """Print the final table and the summary to stdout."""
        _print_end(snapshot)


class _ScreenView:
    """A view that redraws a table in place on a terminal. `close` does nothing, so that the last
    frame stays after Ctrl-C.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines = 0

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the table of the most active trials, fitted to the size of the terminal."""
        height = shutil.get_terminal_size().lines
        colour = has_colour(self._stream)
        text = render_frame(snapshot, terminal_width(self._stream), height, colour)
        self._redraw(f"{text}\n")

    def close(self) -> None:
        return

    def end(self, snapshot: Snapshot) -> None:
        """Erase the last frame, and print the final table and the summary."""
        self._redraw("")
        _print_end(snapshot)

    def _redraw(self, text: str) -> None:
        """Move the cursor to the top of the last frame, erase the frame, and write and flush the
        text. The text becomes the last frame, so that "" only erases.
        """
        up = f"\x1b[{self._lines}A" if self._lines else ""
        # A single write, so that the terminal never shows a part of a frame.
        self._stream.write(f"{up}\r\x1b[J{text}")
        self._stream.flush()
        self._lines = text.count("\n")


def _select_view(form: str) -> _SilentView | _LineView | _ScreenView:
    """Return the view for a form and the abilities of stdout: silent for JSON and YAML, a screen on
    a live terminal, otherwise lines. Nothing is printed.
    """
    if form != "text":
        return _SilentView(form)
    return _ScreenView(sys.stdout) if is_live(sys.stdout) else _LineView()


def _watch(experiment: Experiment, view: _SilentView | _LineView | _ScreenView) -> Snapshot:
    """Poll the experiment and show each snapshot. Return the last snapshot, after the experiment's
    end.

    All trials are fetched at each poll. The wait has no limit. The pause between polls grows to
    POLLING_SECONDS_MAX. The pause is longer if fetching takes long. `experiment` gets the newest
    fields.

    Raises:
        DetcloudError: the cluster does not answer or refuses a request.
    """
    pause_seconds = polling.TIMES.follow_first
    while True:
        started = time.monotonic()
        snapshot = Snapshot(experiment.data, [trial.data for trial in experiment.trials()])
        view.show(snapshot)
        if experiment.has_ended:
            return snapshot
        fetched_seconds = time.monotonic() - started
        time.sleep(max(pause_seconds, fetched_seconds / polling.TIMES.follow_share_max))
        pause_seconds = min(POLLING_SECONDS_MAX, pause_seconds * 1.3)
        # The experiment is fetched before the trials: if the experiment has ended, they are final.
        experiment.refresh()


def _shown_values(trial: Item | None) -> tuple[object, ...] | None:
    """Return the state, the metric and the restarts of a trial. `change_lines` compares these
    values. Return None for None.
    """
    if trial is None:
        return None
    return condition_text(trial), trial.get("metric"), trial.get("restarts")


def _trial_line(trial: Item, metric: str) -> str:
    """Return a line with the trial's id, state, steps, metric and number of failures. An unknown
    metric and zero failures are omitted.

    Args:
        trial: the fields of a trial.
        metric: the name of the metric.
    """
    value = trial.get("metric")
    measured = f", {metric} {cell_text(value)}" if value is not None else ""
    failures = trial.get("restarts")
    failed = f", failed {count_text(failures, 'time')}" if failures else ""
    steps = count_text(trial.get("steps_completed") or 0, "step")
    return f"trial {trial['id']}: {condition_text(trial)}, {steps}{measured}{failed}"


def _headline(experiment: Item) -> str:
    """Return a line with the experiment's id, name, state, progress in percent and a bar. An
    unknown progress is shown as 0%.
    """
    progress = experiment.get("progress") or 0.0
    name = cell_text(experiment.get("name"))
    return (
        f"experiment {experiment['id']} {name}  {condition_text(experiment)}  "
        f"{100 * progress:.0f}% {progress_bar(progress)}"
    )


def _columns(experiment: Item) -> tuple[Column, ...]:
    """Return the columns of the table of trials. The column of the metric has the metric's name as
    title, or `Metric` without a name.
    """
    return (
        field_column("Trial", "id"),
        field_column("Number", "number", drop_rank=1),
        CONDITION,
        Column("Progress", _progress_text),
        field_column(str(experiment.get("metric") or "Metric"), "metric"),
        field_column("Best", "best_metric"),
        Column("Hyperparameters", hparams_text),
    )


def _progress_text(trial: Item) -> str:
    """Return the progress of a trial with a bar, for example `[#####-----] 50/100`, in batches or
    epochs. If the length is unknown, return only the number of batches, such as `50 steps`.
    """
    target, done = trial.get("target_steps"), trial.get("steps_completed") or 0
    if target is None:
        # The training code decides the length, or the length is in epochs.
        epochs = trial.get("target_epochs")
        if epochs is None:
            return count_text(done, "step")
        epochs_done = trial.get("epochs_completed") or 0.0
        goal = f"{round(epochs_done, 1):g}/{count_text(epochs, 'epoch')}"
        return f"{_bar(epochs_done, epochs)} {goal}"
    return f"{_bar(done, target)} {done}/{target}"


def _bar(done: float, target: int) -> str:
    """Return a progress bar of BAR_CELLS characters for `done` of `target`. A target of 0 gives an
    empty bar.
    """
    return progress_bar(done / target if target else 0.0, BAR_CELLS)


def _activity_rank(trial: Item) -> tuple[int, int]:
    """Return a sort key: running trials first, then starting and waiting trials by state and id,
    then ended trials, highest id first.
    """
    if trial.get("ended_ms") is not None:
        return 9, -trial["id"]
    return _CONDITION_ORDER.get(condition_text(trial), 5), trial["id"]


def _print_end(snapshot: Snapshot) -> None:
    """Print the table of all trials by id, and the summary, to stdout. Columns are omitted or cut
    to fit a terminal. Without trials, the table has only titles.
    """
    trials = sorted(snapshot.trials, key=lambda trial: int(trial["id"]))
    columns = _columns(snapshot.experiment)
    print(render_table(columns, trials, terminal_width(sys.stdout), has_colour(sys.stdout)))
    print("\n".join(summary_lines(snapshot)))


HANDLERS: Handlers = {
    "experiment follow": Handler(add_follow_arguments, run_follow),
}
