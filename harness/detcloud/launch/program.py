"""The start of another launcher's program in place of this process."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from detcloud.launch.arguments import LauncherArguments
from detcloud.launch.gang import Gang
from detcloud.shared.parent_death import end_with_parent
from detcloud.shared.trial_directory import TRIAL_DIRECTORY_VARIABLE

INSTEAD = "python3 -m detcloud.launch.torch_distributed"


def end_with_trial() -> None:
    """Make the system end this launcher when its parent, the process of the trial, ends.

    Without a cluster, a launcher may outlive the terminal that started it.
    """
    if os.environ.get(TRIAL_DIRECTORY_VARIABLE):
        end_with_parent(os.getppid())


def become_program(argv: Sequence[str], package: str) -> int:
    """Become the program; returns an exit code only where it is not installed."""
    end_with_trial()
    if shutil.which(argv[0]) is not None:
        os.execvp(argv[0], list(argv))
    text = f"{argv[0]} was not found on the PATH: install {package}, or use `{INSTEAD}`"
    return print_refusal(text)


def print_refusal(text: str) -> int:
    """Print why a launcher cannot start; its exit code."""
    print(f"detcloud: {text}", file=sys.stderr, flush=True)
    return 1


def check_one_node(gang: Gang, name: str) -> str:
    """The reason why a launcher of one node cannot start this trial, "" where it can."""
    if gang.nodes == 1:
        return ""
    return (
        f"detcloud.launch.{name} starts workers on one machine, but this trial is on {gang.nodes}: "
        f"use `{INSTEAD}`, or set resources.is_single_node"
    )


def wrapped_command(rank_variables: str, arguments: LauncherArguments) -> list[str]:
    """The command of a worker whose lines get the rank that the variables name."""
    wrapper = [sys.executable, "-m", "detcloud.launch.wrap_rank", rank_variables, "--"]
    return [*wrapper, *arguments.command]
