"""The replacement of this process by another launcher's program."""

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
    """Make the kernel end this launcher when the parent, the process of the trial, ends.

    Do nothing without a cluster, where a launcher may outlive the terminal that started it.
    """
    if os.environ.get(TRIAL_DIRECTORY_VARIABLE):
        end_with_parent(os.getppid())


def become_program(argv: Sequence[str], package: str) -> int:
    """Replace this process by the program `argv`, which ends when the trial's process ends.

    If the program is not on the PATH, print how to install `package` and return 1. Raises OSError
    if the system cannot run the program.
    """
    end_with_trial()
    if shutil.which(argv[0]) is not None:
        os.execvp(argv[0], list(argv))
    text = f"{argv[0]} was not found on the PATH: install {package}, or use `{INSTEAD}`"
    return print_refusal(text)


def print_refusal(text: str) -> int:
    """Print the reason why a launcher cannot start, and return the exit code 1."""
    print(f"detcloud: {text}", file=sys.stderr, flush=True)
    return 1


def check_one_node(gang: Gang, name: str) -> str:
    """Return the reason why the launcher `name`, for a single node, cannot start this trial.

    Return "" if the trial has a single node.
    """
    if gang.nodes == 1:
        return ""
    return (
        f"detcloud.launch.{name} starts workers on one machine, but this trial is on {gang.nodes}: "
        f"use `{INSTEAD}`, or set resources.is_single_node"
    )


def wrapped_command(rank_variables: str, arguments: LauncherArguments) -> list[str]:
    """Return the command of a worker, wrapped to prefix output lines with the rank.

    `rank_variables` are names of environment variables, separated by commas. The first variable
    that contains a number is the rank.
    """
    wrapper = [sys.executable, "-m", "detcloud.launch.wrap_rank", rank_variables, "--"]
    return [*wrapper, *arguments.command]
