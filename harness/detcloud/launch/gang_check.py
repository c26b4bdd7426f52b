"""The check of a gang's machines before the training code starts.

A separate process checks (gang_checker.py), so that a crash or a hanging library cannot stop the
trial. If the check itself fails, the log names the reason, and the trial starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from detcloud.core.channel import JOIN_SECONDS_MAX
from detcloud.launch.gang import Gang
from detcloud.shared.files import parse_json_object
from detcloud.shared.gang_faults import rounds_max

if TYPE_CHECKING:
    from detcloud.shared.trial_directory import TrialDirectory

FAILED_CODE = 3
"""The exit code of the checker if machines or links are bad."""
ROUND_MARGIN_SECONDS = 15.0
"""The time of a round besides the all-reduce: the start and the end of the workers."""
EXTRA_ROUNDS = 4
"""Rounds in addition to the search: a repetition, and machines alone."""
MOVE_SECONDS_MAX = 60.0
"""The time in which the cluster ends a run on bad machines. Then the trial starts anyway."""


def check_machines(directory: TrialDirectory, gang: Gang | None = None) -> None:
    """Check the machines of a gang if the cluster wants a check, and report the result.

    After a failed check, wait for the end of this process by the cluster, at most MOVE_SECONDS_MAX.
    Raises DetcloudError if the report cannot be written.
    """
    settings = directory.spec.gang_check
    gang = gang or Gang.from_environment()
    if not settings or gang.nodes < 2 or gang.port is None:
        return
    if skip := settings.get("skip"):
        if gang.node_rank == 0:
            print_notice(f"the machines are not checked: {skip}")
        return
    code, result = run_checker(seconds_max(settings, gang.nodes))
    if result is not None and gang.node_rank == 0:
        directory.report.append("gang_check", **result)
    if code == FAILED_CODE:
        time.sleep(MOVE_SECONDS_MAX)
        print_notice("the cluster has not moved the trial, which starts on these machines")


def run_checker(seconds: float) -> tuple[int, dict[str, Any] | None]:
    """Run the checker for at most `seconds`. Return the exit code and the result to report.

    The checker prints to the trial's log. If the checker crashes or takes too long, print the
    reason and return 0 and None.
    """
    argv = [sys.executable, "-m", "detcloud.launch.gang_checker"]
    try:
        ended = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print_notice(f"the machines could not be checked: {error}")
        return 0, None
    if ended.returncode not in (0, FAILED_CODE):
        code = ended.returncode
        print_notice(f"the machines could not be checked: the checker ended with code {code}")
        return 0, None
    lines = ended.stdout.splitlines()
    return ended.returncode, parse_json_object(lines[-1]) if lines else None


def seconds_max(settings: dict[str, Any], nodes: int) -> float:
    """Return the longest duration of a check in s, with the wait for all machines."""
    rounds = rounds_max(nodes) + EXTRA_ROUNDS
    return JOIN_SECONDS_MAX + rounds * (round_seconds(settings) + ROUND_MARGIN_SECONDS)


def round_seconds(settings: dict[str, Any]) -> float:
    """Return the longest duration of an all-reduce in s. Malformed settings have the default."""
    timeout_ms = settings.get("timeout_ms")
    return timeout_ms / 1000 if isinstance(timeout_ms, int) and timeout_ms > 0 else 60.0


def print_notice(text: str) -> None:
    """Print a line of detcloud to the trial's log."""
    print(f"[detcloud] {text}", file=sys.stderr, flush=True)


def render_result(result: dict[str, Any]) -> str:
    """Return a result as the checker's line."""
    return json.dumps(result)
