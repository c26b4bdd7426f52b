"""The options of `python -m detcloud.agent`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from detcloud.agent.cache_limits import KERNELS_MIB, PACKAGES_MIB
from detcloud.agent.clouds import CLOUDS
from detcloud.agent.people.hours import Hours, HoursInvalid, parse_hours
from detcloud.agent.runtime import LOG_BYTES_MAX
from detcloud.agent.slots import AUTO, SLOT_TYPES
from detcloud.shared.pins import PIN_VARIABLE

STOP_SECONDS = 20.0
# A week. A longer delay is more likely an error than a wish.
MINUTES_MAX = 7 * 24 * 60
PLAIN_STARTS = "DETCLOUD_PLAIN_STARTS"
KERNEL_CACHE_MIB = "DETCLOUD_KERNEL_CACHE_MIB"
CONTAINER_RUNTIME = "DETCLOUD_CONTAINER_RUNTIME"
PEOPLE_HOURS = "DETCLOUD_PEOPLE_HOURS"
PEOPLE_AT_CONSOLE = "DETCLOUD_PEOPLE_AT_CONSOLE"
URL_HELP = (
    "the cluster, http://HOST:PORT; the addresses of several servers of the cluster are separated "
    "by commas, and tried in order"
)
# The file in which each runtime records a launch, by the runtime's name. The records of containers
# also name the runtime.
RUNTIMES = {"process": "launch.json", "docker": "container.json", "podman": "container.json"}
RUNTIMES["apptainer"] = RUNTIMES["process"]


def parse_options() -> argparse.Namespace:
    """Parse the options of the command line, with defaults from environment variables.

    For invalid options, print the usage and exit the process with code 2.
    """
    parser = argparse.ArgumentParser(
        prog="python -m detcloud.agent", description="Run trials of a cluster on this machine."
    )
    parser.add_argument("--url", required=True, help=URL_HELP)
    parser.add_argument("--token-file", type=Path, help="the file with the join token")
    parser.add_argument(
        "--identity",
        choices=[cloud.name for cloud in CLOUDS],
        help="prove by this machine's role that it is an instance of the cluster, "
        "instead of using a join token",
    )
    parser.add_argument("--cluster", default="", help="the id of that cluster")
    parser.add_argument("--name", required=True, help="this agent's name, unique in the cluster")
    parser.add_argument("--pool", required=True, help="the resource pool to join")
    parser.add_argument(
        "--label", default="", help="run only experiments with this resources.agent_label"
    )
    parser.add_argument("--work-dir", required=True, type=Path, help="trial directories and cache")
    parser.add_argument(
        "--address",
        help="host name or IP address at which other agents' trials reach those on this one "
        "(default: the one from which this machine speaks to the cluster)",
    )
    parser.add_argument(
        "--region", default="", help="AWS_REGION of the trials, if the variable is set"
    )
    _add_slot_options(parser)
    parser.add_argument(
        "--alive-file",
        type=Path,
        help="a file touched whenever the cluster has responded, and for six more hours while "
        "trials run, so that a machine that watches it can terminate itself",
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
        help="size limit of each trial's log; beyond it only the end is kept (default %(default)s)",
    )
    parser.add_argument(
        "--notices",
        choices=["file", *(cloud.notices for cloud in CLOUDS)],
        default="file",
        help="the source of interruption notices: preemption-notice.json in the work directory, or "
        f"{' or '.join(cloud.notices_place for cloud in CLOUDS)} (default %(default)s)",
    )
    _add_occupancy_options(parser)
    _add_installation_options(parser)
    _add_pin_option(parser)
    _add_process_options(parser)
    _add_container_options(parser)
    options = parser.parse_args()
    if options.people_hours is None:
        options.people_hours = _hours_of_environment(parser)
    return options


def _add_slot_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slots", type=_parse_count, help="use CPU slots instead of the detected devices"
    )
    parser.add_argument(
        "--slot-type",
        choices=SLOT_TYPES,
        default=AUTO,
        help="the devices to use as slots: NVIDIA GPUs (cuda), AMD GPUs (rocm), the GPU of a Mac "
        "(mps) or cores (cpu); auto uses the first of these kinds that the machine has",
    )
    parser.add_argument(
        "--cpu-slots",
        type=_parse_count,
        help="CPU slots where no GPU is detected (default: one for each core); with 0 the agent "
        "runs zero-slot trials only",
    )


def _add_occupancy_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on a machine that people use, too")
    group.add_argument(
        "--people-hours",
        type=_parse_hours,
        action="append",
        metavar="HOURS",
        help="hours of the week without trials, in the machine's time zone, for example "
        "'mon-fri 09:00-18:00' (may be repeated; default: those in "
        f"{PEOPLE_HOURS}, separated by semicolons)",
    )
    group.add_argument(
        "--people-at-console",
        action="store_true",
        default=os.environ.get(PEOPLE_AT_CONSOLE, "") not in ("", "0"),
        help="run no trials while somebody is logged in at this machine's screen; logins over "
        f"ssh do not count; also {PEOPLE_AT_CONSOLE}=1",
    )
    group.add_argument(
        "--people-delay-minutes",
        type=_parse_minutes,
        metavar="MINUTES",
        default=10,
        help="wait after the last logout before trials run again (default %(default)s)",
    )
    group.add_argument(
        "--people-running",
        choices=["checkpoint", "finish"],
        default="checkpoint",
        help="what running trials do when people come: save a checkpoint and leave, or finish "
        "(default %(default)s)",
    )


def _add_installation_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--installed",
        type=Path,
        metavar="FOLDER",
        help="the folder of the installation by `detcloud agent add`, which updates the agent",
    )
    parser.add_argument(
        "--no-updates",
        action="store_true",
        help="update only when an admin requests it, not by itself while idle",
    )


def _add_pin_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pin",
        default=os.environ.get(PIN_VARIABLE, ""),
        help="accept only the cluster's certificate with this digest, sha256:DIGEST; also "
        f"{PIN_VARIABLE}",
    )


def _add_process_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plain-starts",
        action="store_true",
        default=os.environ.get(PLAIN_STARTS, "") not in ("", "0"),
        help=f"never fork trials from a process that has imported torch; also {PLAIN_STARTS}=1",
    )
    parser.add_argument(
        "--kernel-cache-mib",
        type=_parse_limit,
        metavar="MIB",
        default=os.environ.get(KERNEL_CACHE_MIB) or str(KERNELS_MIB),
        help="limit on the kernels that torch.compile and Triton compiled and that this machine "
        f"keeps for later runs of the same user; 0 keeps none; also {KERNEL_CACHE_MIB} "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--package-cache-mib",
        type=_parse_mebibytes,
        metavar="MIB",
        default=str(PACKAGES_MIB),
        help="limit on the packages of environment.pip and environment.uv that this machine keeps "
        "(default %(default)s)",
    )


def _add_container_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--container-runtime",
        choices=RUNTIMES,
        default=os.environ.get(CONTAINER_RUNTIME) or "process",
        help="how trials run: as processes of this machine, or in containers of their images, with "
        "Docker or Podman, each with or without root, or with Apptainer; also "
        f"{CONTAINER_RUNTIME}=docker (default %(default)s)",
    )
    group = parser.add_argument_group("with --container-runtime docker, podman or apptainer")
    group.add_argument(
        "--container-user",
        type=_parse_user,
        metavar="UID:GID",
        help="the user that trials without an agent user run as (default: this agent's user, and "
        "1000:1000 where that is root; not with apptainer)",
    )
    group.add_argument(
        "--container-memory-mib",
        type=_parse_mebibytes,
        metavar="MIB",
        help="limit on each trial's memory (default: none; not with apptainer)",
    )
    group.add_argument(
        "--allow-mount",
        type=Path,
        action="extend",
        nargs="*",
        metavar="FOLDER",
        help="allow trials to mount only folders below this one; an empty value allows "
        "none (may be repeated; default: any that their user may read)",
    )


def _parse_user(text: str) -> tuple[int, int]:
    user, _, group = text.partition(":")
    if not (user.isdecimal() and group.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be UID:GID, two numbers, not {text!r}")
    return int(user), int(group)


def _parse_hours(text: str) -> Hours:
    try:
        return parse_hours(text)
    except HoursInvalid as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _hours_of_environment(parser: argparse.ArgumentParser) -> list[Hours]:
    """Return the hours in the variable PEOPLE_HOURS. Exit with code 2 for an invalid value."""
    texts = filter(str.strip, os.environ.get(PEOPLE_HOURS, "").split(";"))
    try:
        return [parse_hours(text) for text in texts]
    except HoursInvalid as error:
        parser.error(f"the variable {PEOPLE_HOURS} {error}")


def _parse_minutes(text: str) -> int:
    if not text.isdecimal() or int(text) > MINUTES_MAX:
        raise argparse.ArgumentTypeError(f"must be 0 to {MINUTES_MAX} minutes, not {text!r}")
    return int(text)


def _parse_count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of slots, 0 or more, not {text!r}")
    return int(text)


def _parse_limit(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of MiB, 0 or more, not {text!r}")
    return int(text)


def _parse_mebibytes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of MiB, 1 or more, not {text!r}")
    return int(text)
