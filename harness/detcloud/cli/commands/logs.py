"""`detcloud logs`: prints logs of trials once, or continuously with `--follow`."""

from __future__ import annotations

import itertools
import time
from argparse import ArgumentParser, Namespace

from detcloud.cli.commands.log_lines import (
    add_line_filter_options,
    follow_lines,
    needs_line_filter,
    print_lines,
)
from detcloud.cli.framework import polling
from detcloud.cli.framework.argument_types import parse_count
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import (
    add_experiment_argument,
    add_trial_argument,
    load_experiment,
    load_trial,
)
from detcloud.cli.rendering.deleted_data import note_deleted_logs
from detcloud.cli.rendering.log_screen import LogScreen, LogSource
from detcloud.client import Experiment, Trial

# A waiting or paused trial is polled less often, because only late lines can arrive.
IDLE_POLLS = 10
# Sizes of the blocks that are read backwards to find the last lines. Most logs need one block.
TAIL_FIRST_BYTES = 64 * 1024
TAIL_BYTES = 1 << 20


def add_trial_logs_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `print_trial_logs`: TRIAL and the options of `add_log_options`."""
    add_trial_argument(parser)
    add_log_options(parser)


def print_trial_logs(arguments: Namespace) -> int:
    """Print the log of the trial of the argument TRIAL according to the options of
    `add_log_options`, and return 0.

    With `--follow`, wait without a time limit until the log is complete. An empty log prints
    nothing.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such trial, or another request
            failed. Or no line matches and `--rank` is not a rank of the trial.
    """
    return print_log(load_trial(arguments), arguments)


def print_log(trial: Trial, arguments: Namespace) -> int:
    """Print the log of a trial to stdout according to the options of `add_log_options`, and return
    0.

    An empty log prints nothing; a note on stderr tells if logs were deleted after their retention.
    With `--follow`, wait without a time limit until the log is complete.

    Raises:
        DetcloudError: a request failed, or no line matches and `--rank` is not a rank of the trial.
    """
    note_deleted_logs([trial.data])
    if needs_line_filter(arguments):
        print_lines([trial], arguments)
        return 0
    with LogScreen() as screen:
        printer = LogPrinter(trial, screen)
        _print_first_lines([printer], arguments)
        while arguments.follow and not printer.is_complete:
            _wait_unless(printer.print_new())
    return 0


def add_experiment_logs_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `print_experiment_logs`: EXPERIMENT and the options of
    `add_log_options`.
    """
    add_experiment_argument(parser)
    add_log_options(parser)


def print_experiment_logs(arguments: Namespace) -> int:
    """Print the logs of an experiment's trials, trial after trial, and return 0. Without trials,
    print nothing. A note on stderr tells if logs were deleted after their retention.

    Each line names its trial. Only a filtered log of a single trial has no names without
    `--follow`. With `--follow`, print new text of all trials alternately, without a time limit,
    until the experiment has ended.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or another
            request failed. Or no line matches, `--rank` is not a rank of the first trial, and
            `--follow` is missing.
    """
    experiment = load_experiment(arguments)
    if experiment.data.get("logs_deleted_ms"):
        note_deleted_logs(trial.data for trial in experiment.trials())
    if needs_line_filter(arguments):
        if arguments.follow:
            follow_lines(experiment, arguments)
        else:
            print_lines(list(experiment.trials()), arguments)
        return 0
    with LogScreen() as screen:
        _print_experiment_text(experiment, screen, arguments)
    return 0


def follow_first_trial(experiment: Experiment) -> int:
    """Print the log of the first trial until the trial ends. Return 0 if the trial completed,
    otherwise 1.

    The waits have no limit. Return 1 if the experiment ended without a trial. Ctrl-C raises
    KeyboardInterrupt and leaves the experiment running.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    first = follow_log(experiment)
    return 0 if first is not None and first.state == "COMPLETED" else 1


def follow_log(experiment: Experiment) -> Trial | None:
    """Wait for the first trial and print the trial's log to stdout until the trial ends. Return the
    trial with the final fields.

    The waits have no limit. Return None if the experiment ended without a trial. The fields of
    `experiment` are updated while no trial exists.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    while (first := next(experiment.trials(1), None)) is None:
        if experiment.has_ended:
            return None
        _wait_unless(False)
        experiment.refresh()
    with LogScreen() as screen:
        printer = LogPrinter(first, screen)
        while not printer.is_complete:
            _wait_unless(printer.print_new())
    first.refresh()
    return first


def _print_experiment_text(experiment: Experiment, screen: LogScreen, arguments: Namespace) -> None:
    """Print the logs of all trials, and with `--follow` poll until the experiment has ended and all
    logs are complete. The wait has no limit.

    Waiting trials are polled only every IDLE_POLLS polls. Without `--follow`, print only the
    present text.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    printers: dict[int, LogPrinter] = {}
    for poll in itertools.count():
        fresh = _add_new_printers(experiment, screen, printers)
        _print_first_lines(fresh, arguments)
        old = [printer for printer in printers.values() if printer not in fresh]
        due = [printer for printer in old if printer.is_active or poll % IDLE_POLLS == 0]
        has_grown = any([printer.print_new() for printer in due if not printer.is_complete])
        if not arguments.follow or (
            experiment.has_ended and all(printer.is_complete for printer in printers.values())
        ):
            return
        _wait_unless(has_grown)
        experiment.refresh()


class LogPrinter:
    """A printer of a trial's log while the log grows. `is_complete` becomes True when the log
    cannot grow further.

    Incomplete lines are printed too, because a progress bar has no complete lines.
    """

    def __init__(self, trial: Trial, screen: LogScreen, prefix: str = "") -> None:
        self._trial = trial
        self._screen = screen
        self._source = LogSource(prefix)
        self._offset = 0
        self._lines_skipped = 0
        self.is_complete = False

    def set_trial(self, trial: Trial) -> None:
        """Replace the trial by newer data of this trial, for `is_active`. Nothing is fetched or
        printed.
        """
        self._trial = trial

    @property
    def is_active(self) -> bool:
        """Whether the trial has an allocation or has ended, so that the log may have new text."""
        return bool(self._trial.data["allocation"]) or self._trial.data["ended_ms"] is not None

    def print_new(self) -> bool:
        """Fetch and print the new text of the log, flush stdout, and return whether the log has
        grown.

        Set `is_complete` if the log cannot grow further, and end an incomplete last line in this
        case.

        Raises:
            DetcloudError: a request to the cluster failed.
        """
        has_grown = False
        while True:
            chunk = self._trial.log_chunk(self._offset)
            is_last = chunk["next"] <= self._offset
            self._offset = chunk["next"]
            self._screen.write(self._source, self._skip_lines(chunk["text"]))
            if is_last:
                self.is_complete = chunk["complete"]
                if self.is_complete:
                    self.finish()
                return has_grown
            has_grown = True

    def print_tail(self, lines: int) -> None:
        """Print the last `lines` lines and text that arrived in the meantime. A shorter log is
        printed whole. Later calls of `print_new` continue from there.

        Args:
            lines: 0 prints only the text that arrives in the meantime.

        Raises:
            DetcloudError: a request to the cluster failed.
        """
        self._offset, self._lines_skipped = find_tail(self._trial, lines)
        self.print_new()

    def finish(self) -> None:
        """Print held text, end an incomplete last line, and flush stdout. Nothing is fetched."""
        self._screen.finish(self._source)

    def _skip_lines(self, text: str) -> str:
        """Return the text without lines that `print_tail` skips. Count the skipped lines down, so
        that later pieces continue.
        """
        while text and self._lines_skipped:
            _, newline, text = text.partition("\n")
            self._lines_skipped -= bool(newline)
        return text


def find_tail(trial: Trial, lines: int) -> tuple[int, int]:
    """Return the offset of a block that contains the last `lines` lines, and the number of lines to
    skip in the block.

    Blocks are fetched backwards from the end of the log. For 0 lines, return the end of the log and
    0. A shorter log gives (0, 0).

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    last = trial.log_chunk(tail_bytes=1)
    start: int = last["next"]
    if lines == 0:
        return start, 0
    # A newline at the end of the log does not begin another line.
    newlines_needed = lines + (last["text"] == "\n")
    newlines = 0
    size = TAIL_FIRST_BYTES
    while start > 0 and newlines < newlines_needed:
        # A block has at least four bytes, the maximum of a character.
        end, start = start, start - size if start >= size + 4 else 0
        newlines += trial.log_chunk(start, limit_bytes=max(4, end - start))["text"].count("\n")
        size = TAIL_BYTES - 4
    return start, max(0, newlines - newlines_needed + 1)


def add_log_options(parser: ArgumentParser) -> None:
    """Add `--follow`, `--head`, `--tail` and the options of `add_line_filter_options`, for
    `print_log`.

    `--follow` is False by default. `--head` and `--tail` are counts, None by default, and exclude
    each other. `--follow` can be combined with each of them.
    """
    parser.add_argument(
        "-f", "--follow", action="store_true", help="keep printing until the trials end"
    )
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--head",
        type=parse_count,
        metavar="LINES",
        help="print only the first LINES lines of a trial",
    )
    ends.add_argument(
        "--tail",
        type=parse_count,
        metavar="LINES",
        help="print only the last LINES lines of a trial",
    )
    add_line_filter_options(parser)


def _add_new_printers(
    experiment: Experiment, screen: LogScreen, printers: dict[int, LogPrinter]
) -> list[LogPrinter]:
    """Add a printer for each new trial to `printers`, and return the new printers. Update the
    trials of known printers. The list is empty without new trials.

    The trials are fetched from the cluster. Nothing is printed yet.

    Args:
        screen: the screen on which new printers print, with the prefix `[trial ID] `.
        printers: printers by trial id, which the function changes.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    fresh = []
    for trial in experiment.trials():
        if trial.id not in printers:
            printers[trial.id] = LogPrinter(trial, screen, f"[trial {trial.id}] ")
            fresh.append(printers[trial.id])
        printers[trial.id].set_trial(trial)
    return fresh


def _print_first_lines(printers: list[LogPrinter], arguments: Namespace) -> None:
    """Fetch and print the present text of each printer's log, or the last lines with `--tail`,
    printer after printer.

    Without `--follow`, also end incomplete last lines.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    for printer in printers:
        if arguments.tail is None:
            printer.print_new()
        else:
            printer.print_tail(arguments.tail)
        if not arguments.follow:
            printer.finish()


def _wait_unless(has_grown: bool) -> None:
    """Sleep between two polls if the last poll found no new text. Otherwise do nothing."""
    if not has_grown:
        time.sleep(polling.TIMES.logs)


HANDLERS: Handlers = {
    "trial logs": Handler(add_trial_logs_arguments, print_trial_logs),
    "experiment logs": Handler(add_experiment_logs_arguments, print_experiment_logs),
}
