"""Prints logs of trials, once or for as long as they grow."""

from __future__ import annotations

import itertools
import sys
import time
from argparse import ArgumentParser, Namespace

from detcloud.cli.experiment import experiment_argument, experiment_of
from detcloud.cli.log_lines import add_line_options, follow_lines, print_lines, wants_lines
from detcloud.cli.options import count
from detcloud.cli.trial import trial_argument, trial_of
from detcloud.client import Experiment, Trial

POLLING_SECONDS = 1.0
# A trial that waits for a slot or is paused prints nothing, but for last lines that come late.
IDLE_TURNS = 10
# Enough for the last lines asked for, whatever their length, without the whole log.
TAIL_BYTES = 1 << 20


def trial_logs_arguments(parser: ArgumentParser) -> None:
    trial_argument(parser)
    _options(parser)


def trial_logs(arguments: Namespace) -> int:
    trial = trial_of(arguments)
    if wants_lines(arguments):
        print_lines([trial], arguments)
        return 0
    reader = LogReader(trial, prefix="")
    _show([reader], arguments)
    while arguments.follow and not reader.complete:
        _pause(reader.read())
    return 0


def experiment_logs_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    _options(parser)


def experiment_logs(arguments: Namespace) -> int:
    """One trial after the other; followed, they take turns and their lines name the trial."""
    experiment = experiment_of(arguments)
    if wants_lines(arguments):
        if arguments.follow:
            follow_lines(experiment, arguments)
        else:
            print_lines(list(experiment.trials()), arguments)
        return 0
    return _experiment_text(experiment, arguments)


def follow_first_trial(experiment: Experiment) -> int:
    """Prints the log of the first trial until its end; 0 when it completed, else 1.

    Ctrl-C leaves the experiment running.
    """
    while (first := next(experiment.trials(1), None)) is None:
        if experiment.ended:
            return 1
        _pause(False)
        experiment.refresh()
    reader = LogReader(first, prefix="")
    while not reader.complete:
        _pause(reader.read())
    first.refresh()
    return 0 if first.state == "COMPLETED" else 1


def _experiment_text(experiment: Experiment, arguments: Namespace) -> int:
    readers: dict[int, LogReader] = {}
    for turn in itertools.count():
        fresh = _new_readers(experiment, readers)
        _show(fresh, arguments)
        old = [reader for reader in readers.values() if reader not in fresh]
        due = [reader for reader in old if reader.is_lively or turn % IDLE_TURNS == 0]
        moved = any([reader.read() for reader in due if not reader.complete])
        if not arguments.follow or (
            experiment.ended and all(reader.complete for reader in readers.values())
        ):
            break
        _pause(moved)
        experiment.refresh()
    return 0


class LogReader:
    """Prints a trial's log from where it stopped, whole lines only until the log is complete."""

    def __init__(self, trial: Trial, prefix: str) -> None:
        self._trial = trial
        self._prefix = prefix
        self._offset = 0
        self._rest = ""
        self.complete = False

    def meet(self, trial: Trial) -> None:
        """Takes the trial as the cluster describes it now."""
        self._trial = trial

    @property
    def is_lively(self) -> bool:
        """Whether the trial runs, or ended and its last lines may still be on their way."""
        return bool(self._trial.data["allocation"]) or self._trial.data["ended_ms"] is not None

    def read(self) -> bool:
        """Prints what is new; returns whether there was anything."""
        moved = False
        while True:
            chunk = self._trial.log_chunk(self._offset)
            grown = chunk["next"] > self._offset
            self._offset = chunk["next"]
            self._rest += chunk["text"]
            self._print_lines()
            if not grown:
                self._finish(chunk["complete"])
                return moved
            moved = True

    def read_tail(self, lines: int) -> None:
        """Prints the last `lines` lines; `read` goes on from there."""
        chunk = self._trial.log_chunk(tail_bytes=TAIL_BYTES)
        self._offset = chunk["next"]
        kept = chunk["text"].splitlines(keepends=True)[-lines:] if lines else []
        self._rest = "".join(kept)
        self._print_lines()
        self._finish(chunk["complete"])

    def flush(self) -> None:
        """Prints an unfinished last line."""
        if self._rest:
            sys.stdout.write(f"{self._prefix}{self._rest}\n")
            self._rest = ""
        sys.stdout.flush()

    def _print_lines(self) -> None:
        *lines, self._rest = self._rest.split("\n")
        sys.stdout.writelines(f"{self._prefix}{line}\n" for line in lines)
        sys.stdout.flush()

    def _finish(self, complete: bool) -> None:
        self.complete = complete
        if complete:
            self.flush()


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the end")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--head", type=count, metavar="LINES", help="only the first lines")
    ends.add_argument("--tail", type=count, metavar="LINES", help="only the last lines")
    add_line_options(parser)


def _new_readers(experiment: Experiment, readers: dict[int, LogReader]) -> list[LogReader]:
    fresh = []
    for trial in experiment.trials():
        if trial.id not in readers:
            readers[trial.id] = LogReader(trial, f"[trial {trial.id}] ")
            fresh.append(readers[trial.id])
        readers[trial.id].meet(trial)
    return fresh


def _show(readers: list[LogReader], arguments: Namespace) -> None:
    for reader in readers:
        if arguments.tail is None:
            reader.read()
        else:
            reader.read_tail(arguments.tail)
        if not arguments.follow:
            reader.flush()


def _pause(moved: bool) -> None:
    if not moved:
        time.sleep(POLLING_SECONDS)
