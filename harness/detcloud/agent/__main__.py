"""`python -m detcloud.agent`: reads the options, puts the parts together, runs the agent."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from detcloud import __version__
from detcloud.agent.address import own_address
from detcloud.agent.agent import Agent
from detcloud.agent.environment import shared_environment
from detcloud.agent.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.notices import Ec2Notices, FileNotices, NoticeSource
from detcloud.agent.own_report import OwnReport
from detcloud.agent.pace import Pace
from detcloud.agent.runtime import LOG_BYTES_MAX, ContainerRuntime, ProcessRuntime
from detcloud.agent.session import Identity, Session
from detcloud.agent.slots import Slot, SlotsUnknown, discover_slots, threads_per_slot
from detcloud.agent.template import Template
from detcloud.http import Transport

if TYPE_CHECKING:
    from detcloud.agent.credentials import CredentialServer, Keys

STOP_SECONDS = 20.0
PLAIN_STARTS = "DETCLOUD_PLAIN_STARTS"
METADATA_ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
CONTAINER_RUNTIME = "DETCLOUD_CONTAINER_RUNTIME"
# What each writes down of a launch.
RUNTIMES = {"process": "launch.json", "docker": "container.json"}
# Of the user of our images; an agent of root's gives no trial its own rights.
CONTAINER_USER = (1000, 1000)


class Misconfigured(Exception):
    """The agent cannot start with these options."""


def main() -> int:
    """Run one agent; 0 after a requested stop, 1 when refused, 2 for options that cannot work."""
    os.umask(0o077)
    try:
        return run(_options())
    except (Misconfigured, SlotsUnknown) as error:
        say(str(error))
        return 2


def run(options: argparse.Namespace) -> int:
    """The composition root: builds the agent from its options and runs it."""
    work = options.work_dir.absolute()
    slots = discover_slots(options.slots, options.cpu_slots)
    with _claimed(work):
        token = _join_token(options, work)
        pace = Pace()

        def download(path: str, file: BinaryIO) -> int:
            client = Transport(options.url, session.token)
            try:
                return client.download(path, file)
            finally:
                client.close()

        def storage_keys(allocation: str) -> dict[str, str]:
            return keys_of_storage().variables(allocation)

        @cache
        def keys_of_storage() -> CredentialServer:
            from detcloud.agent.credentials import CredentialServer, fetched

            path = f"/api/v1/agents/{options.name}/storage-credentials"

            def fetch(allocation: str) -> Keys:
                return fetched(options.url, session.token, path, allocation)

            return CredentialServer(work, fetch, say)

        code = CodeCache(work / "cache/code", download)
        runtime = _runtime(options, work, slots)
        log_bytes_max = options.log_mib << 20
        node = Node(
            work,
            slots,
            runtime,
            code,
            say,
            log_bytes_max=log_bytes_max,
            storage_variables=storage_keys,
        )
        address = options.address or own_address(options.url)
        told = __version__, options.label, address
        identity = Identity(options.name, options.pool, slots, *told)
        heard = _heard(options.alive_file)
        session = Session(options.url, token, identity, node, pace, say, heard)
        if (work / "credentials.json").exists():
            # Trials that an earlier agent began ask for their keys where it answered.
            keys_of_storage()
        notices = notice_source(options.notices, work)
        agent = Agent(node, pace, session, notices, options.stop_seconds, say)

        def stop(*_: object) -> None:
            agent.stop_requests += 1

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        refused = agent.run()
    if refused is not None:
        say(refused)
    return 0 if refused is None else 1


def say(message: str) -> None:
    """One line of the agent's own log."""
    # Where the log is full or gone, the agent goes on without it. Nothing is left in a buffer,
    # whose last flush would decide about the exit code.
    with contextlib.suppress(OSError):
        os.write(2, f"detcloud agent: {message}\n".encode(errors="backslashreplace"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m detcloud.agent", description="Run this node's share of a cluster's trials."
    )
    parser.add_argument("--url", required=True, help="the cluster, http://HOST:PORT")
    parser.add_argument("--token-file", type=Path, help="holds the join token")
    parser.add_argument(
        "--identity",
        choices=("aws",),
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
    parser.add_argument("--slots", type=_count, help="CPU slots instead of the devices found")
    parser.add_argument(
        "--cpu-slots",
        type=_count,
        help="CPU slots where no GPU is found (default: one for each core); without any the agent "
        "takes trials without slots",
    )
    parser.add_argument(
        "--alive-file",
        type=Path,
        help="touched whenever the cluster has answered: a machine that watches it can end itself",
    )
    parser.add_argument(
        "--stop-seconds",
        type=float,
        default=STOP_SECONDS,
        help="time for trials to checkpoint when the agent is told to stop",
    )
    parser.add_argument(
        "--log-mib",
        type=_mebibytes,
        default=LOG_BYTES_MAX >> 20,
        help="limit on each trial's log, whose end is kept beyond it (default %(default)s)",
    )
    parser.add_argument(
        "--notices",
        choices=("file", "ec2"),
        default="file",
        help="what tells that this machine is about to end: preemption-notice.json in the work "
        "directory, or EC2's metadata (default %(default)s)",
    )
    parser.add_argument(
        "--plain-starts",
        action="store_true",
        default=os.environ.get(PLAIN_STARTS, "") not in ("", "0"),
        help=f"never fork trials from a process with torch imported; also {PLAIN_STARTS}=1",
    )
    _container_options(parser)
    return parser.parse_args()


def _container_options(parser: argparse.ArgumentParser) -> None:
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
        type=_user,
        metavar="UID:GID",
        help="whom trials run as (default: this agent's user, and 1000:1000 where that is root)",
    )
    group.add_argument(
        "--container-memory-mib",
        type=_mebibytes,
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


def _user(text: str) -> tuple[int, int]:
    user, _, group = text.partition(":")
    if not (user.isdecimal() and group.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be UID:GID, two numbers, not {text!r}")
    return int(user), int(group)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of slots from 0, not {text!r}")
    return int(text)


def _mebibytes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of MiB from 1, not {text!r}")
    return int(text)


def notice_source(source: str, work: Path) -> NoticeSource:
    """What tells this agent that its machine is about to end: `file` or `ec2`."""
    if source == "file":
        return FileNotices(work / "preemption-notice.json")
    from detcloud.agent.ec2_metadata import Ec2Metadata

    return Ec2Notices(Ec2Metadata(_metadata_endpoint())).start()


def _runtime(options: argparse.Namespace, work: Path, slots: Sequence[Slot]) -> ContainerRuntime:
    if options.container_runtime not in RUNTIMES:
        known, found = " or ".join(RUNTIMES), options.container_runtime
        raise Misconfigured(f"{CONTAINER_RUNTIME} must be {known}, not {found!r}")
    _check_no_other(options.container_runtime, work)
    if options.container_runtime == "process":
        return ProcessRuntime(None if options.plain_starts else _template(work, slots))
    from detcloud.agent.container import ContainerRules
    from detcloud.agent.docker_api import Engine, EngineAway, EngineRefused, socket_path
    from detcloud.agent.docker_runtime import DockerRuntime

    try:
        engine = Engine(socket_path(os.environ))
        version = engine.version()
    except (ValueError, EngineAway, EngineRefused) as error:
        raise Misconfigured(
            f"--container-runtime docker: {error}; start Docker, name its socket with "
            "DOCKER_HOST=unix:///PATH, or run trials with --container-runtime process"
        ) from error
    say(f"trials run in containers of Docker {version}")
    own = (os.getuid(), os.getgid())
    user, group = options.container_user or (own if own[0] else CONTAINER_USER)
    allowed = None if options.allow_mount is None else tuple(options.allow_mount)
    memory_bytes = (options.container_memory_mib or 0) << 20
    rules = ContainerRules(work, options.name, user, group, allowed, memory_bytes)
    return DockerRuntime(engine, rules, say)


def _check_no_other(runtime: str, work: Path) -> None:
    """Whether a trial still runs here that only another runtime could look after."""
    for other, record in RUNTIMES.items():
        for left in work.glob(f"allocations/*/agent/{record}") if other != runtime else ():
            report = OwnReport(left.with_name("report-agent.jsonl"))
            if not any(one.get("kind") == "exited" for one in report.records()):
                raise Misconfigured(
                    f"{left.parents[1]} was begun with --container-runtime {other}; let it end "
                    "under an agent with that option first"
                )


def _template(work: Path, slots: Sequence[Slot]) -> Template | None:
    if sys.platform != "linux":
        # Elsewhere a process that has loaded as much as torch does must not fork.
        return None
    environment = shared_environment(os.environ, threads_per_slot(slots))
    return Template(work / "template", environment, say)


def _heard(path: Path | None) -> Callable[[], None]:
    def touched() -> None:
        if path is not None:
            with contextlib.suppress(OSError):
                path.touch()

    return touched


def _join_token(options: argparse.Namespace, work: Path) -> str:
    if (options.token_file is None) == (options.identity is None):
        raise Misconfigured("give either --token-file or --identity aws")
    if options.identity is None:
        return _token(options.token_file)
    if not options.cluster:
        raise Misconfigured("--identity aws needs --cluster, the id of the cluster")
    from detcloud.agent.aws_identity import NotProved, proved_token
    from detcloud.agent.ec2_metadata import Ec2Metadata

    metadata = Ec2Metadata(_metadata_endpoint())
    place = options.url, options.cluster, options.pool
    try:
        return proved_token(work / "join.token", *place, metadata, say)
    except NotProved as error:
        raise Misconfigured(f"the cluster does not let this instance in: {error}") from error


def _metadata_endpoint() -> str:
    from detcloud.agent.ec2_metadata import ENDPOINT

    return os.environ.get(METADATA_ENDPOINT) or ENDPOINT


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise Misconfigured(f"the token file {path} could not be read: {error}") from error
    if not token:
        raise Misconfigured(f"the token file {path} is empty; it must hold the pool's join token")
    return token


def _claimed(work: Path) -> BinaryIO:
    """The work directory's lock: two agents in one would start everything twice."""
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = (work / "agent.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise Misconfigured(
            f"another agent works in {work}; give each its own --work-dir"
        ) from None
    return lock


if __name__ == "__main__":
    sys.exit(main())
