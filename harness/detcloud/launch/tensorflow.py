"""The launcher of TensorFlow's workers, `python3 -m detcloud.launch.tensorflow`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from detcloud.launch.arguments import LauncherArguments, parse_launcher_arguments
from detcloud.launch.gang import Gang
from detcloud.launch.program import become_program, print_refusal

NAME = "tensorflow"
DESCRIPTION = (
    "Starts one worker on each node; where there are several, TF_CONFIG tells them of each other.\n"
    "The only option before -- is --port PORT. TRIAL is file:Class."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Replace this process by this node's worker.

    The worker's output lines get the node's rank as a prefix. With several nodes, set TF_CONFIG.
    Print the reason and return 1 for options other than `--port PORT`. Raises SystemExit: 1 without
    a trial or script or with both, 0 after the usage for `-h`. Raises OSError if the system cannot
    run Python.
    """
    arguments = parse_launcher_arguments(NAME, sys.argv[1:] if argv is None else argv, DESCRIPTION)
    gang = Gang.from_environment()
    port = _port(arguments, gang)
    if port is None:
        return print_refusal(f"{' '.join(arguments.overrides)!r} is not --port PORT")
    if gang.nodes > 1:
        os.environ["TF_CONFIG"] = json.dumps(tensorflow_config(gang, port))
    wrapper = [sys.executable, "-m", "detcloud.launch.wrap_rank", str(gang.node_rank), "--"]
    return become_program([*wrapper, *arguments.command], "Python")


def tensorflow_config(gang: Gang, port: int) -> dict[str, object]:
    """Return the content of TF_CONFIG: the addresses of all workers, and this worker's index."""
    workers = [f"{host}:{port}" for host in gang.hosts]
    return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": gang.node_rank}}


def _port(arguments: LauncherArguments, gang: Gang) -> int | None:
    """Return the port of the workers: of `--port`, of the trial, or 12345 without a cluster.

    `--port PORT` and `--port=PORT` are the only valid overrides, the user's options before `--`.
    Return None for all other overrides, and for a PORT that is no number.
    """
    words = [word for part in arguments.overrides for word in part.split("=", 1)]
    if not words:
        return gang.port or 12345
    valid = len(words) == 2 and words[0] == "--port" and words[1].isdigit()
    return int(words[1]) if valid else None


if __name__ == "__main__":
    sys.exit(main())
