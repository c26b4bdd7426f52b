"""Lines of logs that the cluster chooses: by time, rank, level or what they say."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice

from detcloud.cli.options import count, foreign_option, moment_ms
from detcloud.cli.output import json_text
from detcloud.cli.terminal import clean
from detcloud.client import Experiment, LogFilter, Trial
from detcloud.client.log import LEVELS, LogCursor
from detcloud.client.records import LogLine

POLLING_SECONDS = 1.0


def add_line_options(parser: ArgumentParser) -> None:
    """Adds the filters, their original spellings, and what a printed line shows."""
    parser.add_argument(
        "--since",
        "--timestamp-after",
        type=moment_ms,
        metavar="WHEN",
        help="only lines from then on: 2026-01-31T12:00:00 (UTC), or 90m, 12h, 3d ago",
    )
    parser.add_argument(
        "--until",
        "--timestamp-before",
        type=moment_ms,
        metavar="WHEN",
        help="only lines before then",
    )
    parser.add_argument(
        "--rank", "--rank-id", type=count, metavar="N", help="only this process's of the trial"
    )
    parser.add_argument(
        "--level", choices=LEVELS, type=str.upper, help="only lines of this level and above"
    )
    parser.add_argument("--search", metavar="TEXT", help="only lines that hold this text")
    parser.add_argument(
        "--timestamps", action="store_true", help="show time, rank and level before each line"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each line")
    for flag in ("--agent-id", "--container-id", "--source", "--stdtype"):
        foreign_option(parser, flag, instead="--rank, --level and --search choose lines")


def wants_lines(arguments: Namespace) -> bool:
    """Whether an option needs more than the text of the log as it is."""
    chosen = (arguments.head, arguments.since, arguments.until, arguments.rank, arguments.level)
    return (
        any(option is not None for option in chosen)
        or bool(arguments.search)
        or arguments.timestamps
        or arguments.json
    )


def print_lines(trials: list[Trial], arguments: Namespace) -> None:
    """Prints the lines that fit, trial by trial, each as far as `--head` and `--tail` go."""
    for trial in trials:
        prefix = f"[trial {trial.id}] " if len(trials) > 1 else ""
        for line in _ends(trial, arguments):
            print(_printed(line, trial, prefix, arguments), flush=arguments.follow)
    sys.stdout.flush()


def follow_lines(experiment: Experiment, arguments: Namespace) -> None:
    """Prints the lines that fit of all trials, as they come, until the experiment has ended.

    `--head` and `--tail` count for what is there of a trial when it is first seen.
    """
    cursors: dict[int, LogCursor] = {}
    while True:
        has_ended = experiment.ended
        for trial in experiment.trials():
            is_new = trial.id not in cursors
            cursor = cursors.setdefault(trial.id, trial.log_cursor(_wanted(arguments)))
            lines = cursor.read()
            for line in _cut(lines, arguments) if is_new else lines:
                print(_printed(line, trial, f"[trial {trial.id}] ", arguments), flush=True)
        if has_ended and all(cursor.complete for cursor in cursors.values()):
            return
        time.sleep(POLLING_SECONDS)
        experiment.refresh()


def _wanted(arguments: Namespace) -> LogFilter:
    return LogFilter(
        arguments.since, arguments.until, arguments.rank, arguments.level, arguments.search
    )


def _ends(trial: Trial, arguments: Namespace) -> Iterator[LogLine]:
    """The lines as far as `--head` and `--tail` go; what comes later follows the last ones."""
    cursor = trial.log_cursor(_wanted(arguments))
    yield from _cut(cursor.read(), arguments)
    while arguments.follow and not cursor.complete and arguments.head is None:
        time.sleep(POLLING_SECONDS)
        yield from cursor.read()


def _cut(lines: Iterator[LogLine], arguments: Namespace) -> Iterable[LogLine]:
    if arguments.tail is not None:
        return deque(lines, arguments.tail)
    return islice(lines, arguments.head)


def _printed(line: LogLine, trial: Trial, prefix: str, arguments: Namespace) -> str:
    if arguments.json:
        return json_text({"trial_id": trial.id, **line}, indent=None)
    if not arguments.timestamps:
        return f"{prefix}{line['text']}"
    moment = _moment_text(line["time_ms"])
    level = f" {clean(line['level'])}" if line["level"] else ""
    return f"[{moment}] [rank={line['rank']}]{level} {prefix}{line['text']}"


def _moment_text(time_ms: int | None) -> str:
    if time_ms is None:
        return "when?"
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"
