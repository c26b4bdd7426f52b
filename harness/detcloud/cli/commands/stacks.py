"""`detcloud trial stacks`: the stacks that the processes of a trial printed."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import add_trial_argument, load_trial
from detcloud.cli.rendering.table import time_text
from detcloud.client.stack_dumps import StackDump, find_stack_dumps
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text


def add_stacks_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `show_stacks`: TRIAL and `--output`, which is None by default."""
    add_trial_argument(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the stacks to a file (default: print them)",
    )


def show_stacks(arguments: Namespace) -> int:
    """Print or write the stacks in a trial's log, with rank and time. Return 0.

    A hanging trial prints the stacks of all ranks, and a process prints them after SIGUSR1. A note
    on stderr says if the log has none, and names the ranks that differ in the last hang.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such trial, a request failed, or
            the file cannot be written.
    """
    trial = load_trial(arguments)
    dumps = list(find_stack_dumps(trial.log_lines()))
    hang = (trial.data.get("allocation") or {}).get("hang")
    if hang:
        print(f"hang: {hang['text']}", file=sys.stderr)
    if not dumps:
        print(f"the log of trial {trial.id} has no stacks", file=sys.stderr)
        return 0
    text = stacks_text(dumps)
    if arguments.output is None:
        print(text)
        return 0
    try:
        arguments.output.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise DetcloudError(f"{arguments.output}: {error.strerror}") from None
    ranks = count_text(len({dump.rank for dump in dumps}), "rank")
    print(f"wrote the stacks of {ranks} to {arguments.output}")
    return 0


def stacks_text(dumps: Sequence[StackDump]) -> str:
    """Return the stacks, each with a title that has the rank and the time."""
    return "\n\n".join(
        f"# rank {dump.rank}{'' if dump.time_ms is None else f', {time_text(dump.time_ms)}'}\n"
        f"{dump.text}"
        for dump in dumps
    )


HANDLERS: Handlers = {"trial stacks": Handler(add_stacks_arguments, show_stacks)}
