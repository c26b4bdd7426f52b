"""Printing of log lines that the cluster filters by time, rank, level or text."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

from detcloud.cli.framework import polling
from detcloud.cli.framework.argument_types import parse_count, parse_moment_ms
from detcloud.cli.framework.options import add_replaced_option
from detcloud.cli.rendering.log_screen import LogScreen
from detcloud.cli.rendering.output import render_json
from detcloud.cli.rendering.terminal import sanitize, sanitize_output
from detcloud.client import Experiment, LogFilter, Trial
from detcloud.client.log import LEVELS
from detcloud.client.records import LogLine
from detcloud.shared.errors import DetcloudError


def add_line_filter_options(parser: ArgumentParser) -> None:
    """Add the line filters, also in Determined's spellings, and the options for the form of lines:
    `--timestamps` and `--json`, False by default.

    The filters are `--since`, `--until`, `--rank`, `--level` and `--search`, None by default. Times
    become epoch milliseconds, and levels upper case. `--agent-id`, `--container-id`, `--source` and
    `--stdtype` of Determined are hidden options that end the command with a usage error.
    """
    parser.add_argument(
        "--since",
        "--timestamp-after",
        type=parse_moment_ms,
        metavar="WHEN",
        help="only lines from this time on: 2026-01-31T12:00:00 (UTC), or 90m, 12h, 3d ago",
    )
    parser.add_argument(
        "--until",
        "--timestamp-before",
        type=parse_moment_ms,
        metavar="WHEN",
        help="only lines before this time, in the same forms",
    )
    parser.add_argument(
        "--rank",
        "--rank-id",
        type=parse_count,
        metavar="N",
        help="only lines of the process with this rank",
    )
    parser.add_argument(
        "--level",
        choices=LEVELS,
        type=str.upper,
        help="only lines of this level and above; a line without a level counts as INFO",
    )
    parser.add_argument("--search", metavar="TEXT", help="only lines that contain this text")
    parser.add_argument(
        "--timestamps", action="store_true", help="show time, rank and level before each line"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each line")
    for flag in ("--agent-id", "--container-id", "--source", "--stdtype"):
        add_replaced_option(parser, flag, instead="--rank, --level and --search choose lines")


def needs_line_filter(arguments: Namespace) -> bool:
    """Return whether an option requires single lines rather than the text of the log.

    All line filters, `--head`, `--timestamps` and `--json` require single lines. `--tail`,
    `--follow` and an empty `--search` do not.
    """
    options = (arguments.head, arguments.since, arguments.until, arguments.rank, arguments.level)
    return (
        any(option is not None for option in options)
        or bool(arguments.search)
        or arguments.timestamps
        or arguments.json
    )


def print_lines(trials: list[Trial], arguments: Namespace) -> None:
    """Print the matching lines of trial after trial, limited by `--head` and `--tail` for each
    trial. Without matches or trials, print nothing.

    Lines of several trials begin with the trial's id. With `--follow`, wait without a time limit
    for new lines of each trial before the next trial.

    Raises:
        DetcloudError: no line matches, and `--rank` is not a rank of the first trial. Or a request
            failed.
    """
    is_empty = True
    with LogScreen() as screen:
        for trial in trials:
            prefix = f"[trial {trial.id}] " if len(trials) > 1 else ""
            for line in _read_trial_lines(trial, arguments):
                is_empty = False
                text = _format_line(line, trial, prefix, arguments)
                screen.print_line(text, flush=arguments.follow)
    sys.stdout.flush()
    if is_empty and trials and arguments.rank is not None:
        _check_rank(trials[0], arguments.rank)


def follow_lines(experiment: Experiment, arguments: Namespace) -> None:
    """Print new matching lines of all trials, also of trials that are created later, until the
    experiment has ended. The wait has no limit.

    Each line begins with the trial's id, or as JSON contains the id. `--head` limits all lines of a
    trial. `--tail` limits the lines that exist when the trial is read for the first time.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    with LogScreen() as screen:
        _follow_lines(experiment, screen, arguments)


def _follow_lines(experiment: Experiment, screen: LogScreen, arguments: Namespace) -> None:
    """Poll the logs of all trials and print the new lines that match the options, until the
    experiment has ended and all lines are printed.

    Trials that are created later are included. Each line begins with the trial's id, or as JSON
    contains the id, and is flushed. `--head` limits all lines of a trial, and `--tail` the lines at
    the first reading. The wait has no limit. The fields of `experiment` are updated.

    Args:
        experiment: the experiment.
        screen: prints the lines.
        arguments: the line filters, `--head`, `--tail`, `--timestamps` and `--json`.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    readers: dict[int, _LineReader] = {}
    while True:
        has_ended = experiment.has_ended
        for trial in experiment.trials():
            if trial.id not in readers:
                readers[trial.id] = _LineReader(trial, arguments)
            for line in readers[trial.id].read():
                text = _format_line(line, trial, f"[trial {trial.id}] ", arguments)
                screen.print_line(text, flush=True)
        if has_ended and all(reader.is_complete for reader in readers.values()):
            return
        time.sleep(polling.TIMES.logs)
        experiment.refresh()


def _check_rank(trial: Trial, rank: int) -> None:
    """Raise DetcloudError if the rank is not below the trial's number of slots. Otherwise do
    nothing.

    The trial's experiment is fetched from the cluster, and a failed request raises DetcloudError
    too. The function is only called without matching lines, because a launcher of the user may
    start more processes.
    """
    # A trial with a share of a slot has a single process.
    slots = max(1, int(trial.experiment().config["resources"]["slots_per_trial"]))
    if rank >= slots:
        ranks = "rank 0 alone" if slots == 1 else f"the ranks 0 to {slots - 1}"
        raise DetcloudError(
            f"--rank {rank}: trial {trial.id} has no process of that rank; its log has {ranks}"
        )


def _line_filter(arguments: Namespace) -> LogFilter:
    """Return the filter of the options `--since`, `--until`, `--rank`, `--level` and `--search`. A
    missing option matches every line.
    """
    return LogFilter(
        arguments.since, arguments.until, arguments.rank, arguments.level, arguments.search
    )


def _read_trial_lines(trial: Trial, arguments: Namespace) -> Iterator[LogLine]:
    """Yield the matching lines of a trial, limited by `--head` and `--tail`.

    With `--follow`, poll without a time limit for later lines until the log or the lines of
    `--head` are complete. `--tail` does not limit the later lines.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    reader = _LineReader(trial, arguments)
    yield from reader.read()
    while arguments.follow and not reader.is_complete:
        time.sleep(polling.TIMES.logs)
        yield from reader.read()


class _LineReader:
    """A reader of a trial's log that applies the line filters, `--head` and `--tail`.

    The line filters are `--since`, `--until`, `--rank`, `--level` and `--search`.
    """

    def __init__(self, trial: Trial, arguments: Namespace) -> None:
        self._cursor = trial.log_cursor(_line_filter(arguments))
        self._tail = arguments.tail
        self._lines_left = arguments.head

    @property
    def is_complete(self) -> bool:
        """Whether the reader will yield no more lines: the log or `--head` is exhausted."""
        return self._lines_left == 0 or self._cursor.complete

    def read(self) -> Iterator[LogLine]:
        """Fetch and yield the new lines up to the present end of the log; no lines if the log has
        not grown.

        `--tail` limits the first call, and `--head` limits the lines of all calls together.

        Raises:
            DetcloudError: a request to the cluster failed.
        """
        if self._tail is not None:
            count, self._tail = self._tail, None
            yield from self._cursor.read_last(count)
            return
        for line in islice(self._cursor.read(), self._lines_left):
            if self._lines_left is not None:
                self._lines_left -= 1
            yield line


def _format_line(line: LogLine, trial: Trial, prefix: str, arguments: Namespace) -> str:
    """Return the output for a line without a line break: JSON with `--json`, otherwise the text
    with an optional prefix. With `--timestamps`, time, rank and level come first.

    JSON has the trial's id and all fields of the line. On a terminal, control characters are
    replaced, and only the text after the last carriage return is shown.

    Args:
        prefix: the text before the line, or "". JSON has no prefix.
    """
    if arguments.json:
        return render_json({"trial_id": trial.id, **line}, indent=None)
    text = sanitize_output(line["text"], sys.stdout)
    if sys.stdout.isatty():
        # On a terminal, a carriage return would overwrite the time and the trial at the beginning.
        text = next((part for part in reversed(text.split("\r")) if part), "")
    if not arguments.timestamps:
        return f"{prefix}{text}"
    moment = _line_time_text(line["time_ms"])
    level = f" {sanitize(line['level'])}" if line["level"] else ""
    return f"[{moment}] [rank={line['rank']}]{level} {prefix}{text}"


def _line_time_text(time_ms: int | None) -> str:
    """Return a time in UTC with milliseconds: `1970-01-01T00:00:00.000Z` for 0, and `unknown time`
    for None.
    """
    if time_ms is None:
        return "unknown time"
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"
