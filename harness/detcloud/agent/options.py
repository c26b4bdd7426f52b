"""The options of `python -m detcloud.agent`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from detcloud.agent.clouds import CLOUDS
from detcloud.agent.runtime import LOG_BYTES_MAX

STOP_SECONDS = 20.0
PLAIN_STARTS = "DETCLOUD_PLAIN_STARTS"
CONTAINER_RUNTIME = "DETCLOUD_CONTAINER_RUNTIME"
# By name, the file in which a runtime records a launch.
RUNTIMES = {"process": "launch.json", "docker": "container.json"}


def parse_options() -> argparse.Namespace:
    """The options of the command line and the environment; exits with 2 for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="python -m detcloud.agent", description="Run this node's share of a cluster's trials."
    )
    parser.add_argument("--url", required=True, help="the cluster, http://HOST:PORT")
    parser.add_argument("--token-file", type=Path, help="holds the join token")
    parser.add_argument(
        "--identity",
        choices=[cloud.name for cloud in CLOUDS],
        help="prove to the cluster, by this machine's role, that it is one of its instances, "
        "instead of a join token",
    )
    parser.add_argument("--cluster", default="", help="the id of the cluster that it is proved to")
    parser.add_argument("--name", required=True, help="this agent's name, unique in the cluster")
    parser.add_argument("--pool", required=True, help="the resource pool to join")
    parser.add_argument(
        "--label", default="", help="take only experiments with this resources.agent_label"
    )
    parser.add_argument("--work-dir", required=True, type=Path, help="trial directories and cache")
    parser.add_argument(
        "--address",
        help="host name or IP address at which other agents' trials reach those on this one "
        "(default: the one from which this machine speaks to the cluster)",
    )
    parser.add_argument("--region", default="", help="AWS_REGION of the trials, where it has one")
    parser.add_argument("--slots", type=_parse_count, help="CPU slots instead of the devices found")
    parser.add_argument(
        "--cpu-slots",
        type=_parse_count,
        help="CPU slots where no GPU is found (default: one for each core); without any the agent "
        "takes trials without slots",
    )
    parser.add_argument(
        "--alive-file",
        type=Path,
        help="touched whenever the cluster has answered, and for six hours more while trials run: "
        "a machine that watches it can end itself",
    )
    parser.add_argument(
        "--stop-seconds",
        type=float,
        default=STOP_SECONDS,
        help="time for trials to checkpoint when the agent is told to stop",
    )
    parser.add_argument(
        "--log-mib",
        type=_parse_mebibytes,
        default=LOG_BYTES_MAX >> 20,
        help="limit on each trial's log, whose end is kept beyond it (default %(default)s)",
    )
    parser.add_argument(
        "--notices",
        choices=["file", *(cloud.notices for cloud in CLOUDS)],
        default="file",
        help="what tells that this machine is about to end: preemption-notice.json in the work "
        f"directory, or {' or '.join(cloud.notices_place for cloud in CLOUDS)} "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--plain-starts",
        action="store_true",
        default=os.environ.get(PLAIN_STARTS, "") not in ("", "0"),
        help=f"never fork trials from a process with torch imported; also {PLAIN_STARTS}=1",
    )
    _add_container_options(parser)
    return parser.parse_args()


def _add_container_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--container-runtime",
        choices=RUNTIMES,
        default=os.environ.get(CONTAINER_RUNTIME) or "process",
        help="how trials run: as processes of this machine, or in containers of their images; also "
        f"{CONTAINER_RUNTIME}=docker (default %(default)s)",
    )
    group = parser.add_argument_group("with --container-runtime docker")
    group.add_argument(
        "--container-user",
        type=_parse_user,
        metavar="UID:GID",
        help="whom trials run as (default: this agent's user, and 1000:1000 where that is root)",
    )
    group.add_argument(
        "--container-memory-mib",
        type=_parse_mebibytes,
        metavar="MIB",
        help="limit on each trial's memory (default: none)",
    )
    group.add_argument(
        "--allow-mount",
        type=Path,
        action="extend",
        nargs="*",
        metavar="FOLDER",
        help="let trials mount only what lies in these folders, nothing without any (may be "
        "repeated; default: anything that their user may read)",
    )


def _parse_user(text: str) -> tuple[int, int]:
    user, _, group = text.partition(":")
    if not (user.isdecimal() and group.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be UID:GID, two numbers, not {text!r}")
    return int(user), int(group)


def _parse_count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of slots from 0, not {text!r}")
    return int(text)


def _parse_mebibytes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of MiB from 1, not {text!r}")
    return int(text)
