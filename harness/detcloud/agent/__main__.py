"""The agent's process, `python -m detcloud.agent`, which builds an agent and runs it.

Modules that only some agents need are imported where they are used, so that an idle agent stays
small (docs/benchmarks.md, `cluster`: idle).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from detcloud.agent.address import local_address
from detcloud.agent.agent import Agent, NoticeSource
from detcloud.agent.alive_file import AliveFile
from detcloud.agent.allocation.agent_report import AgentReport
from detcloud.agent.assignment.agent_user import only_user
from detcloud.agent.assignment.data_layer import DEFAULT_FOLDER
from detcloud.agent.assignment.environment import shared_environment
from detcloud.agent.assignment.model_code import CodeCache
from detcloud.agent.cache_limits import CacheLimits
from detcloud.agent.clouds import CLOUDS, load_instance
from detcloud.agent.credential import Credential
from detcloud.agent.devices.discovery import discover_slots
from detcloud.agent.health.machine_health import MachineHealth
from detcloud.agent.installation import read_installation
from detcloud.agent.node import Node
from detcloud.agent.options import CONTAINER_RUNTIME, RUNTIMES, parse_options
from detcloud.agent.processes.fork_server import ForkServer
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.runtime import ContainerRuntime
from detcloud.agent.slots import Slot, SlotsUnknown, threads_per_slot
from detcloud.agent.sync.enrolment import AgentIdentity
from detcloud.agent.sync.schedule import SyncSchedule
from detcloud.agent.sync.session import Session
from detcloud.agent.trial_grants import TrialGrants
from detcloud.agent.usage.use_sampler import UseSampler
from detcloud.shared.address_list import split_addresses
from detcloud.shared.certificates import complete_environment
from detcloud.shared.errors import InvalidValue
from detcloud.shared.files import read_json_object
from detcloud.shared.http import Transport
from detcloud.shared.notices import FileNotices
from detcloud.shared.pins import pin_server
from detcloud.shared.proxies import find_proxy
from detcloud.shared.version import __version__

if TYPE_CHECKING:
    from detcloud.agent.people.people_watch import OccupancyWatch
    from detcloud.agent.self_termination import SelfTermination
    from detcloud.agent.updates import CodeUpdater
    from detcloud.agent.usage.amd import AmdReader
    from detcloud.agent.usage.nvml import GpuReader

# The user and group of detcloud's images. Trials of an agent that runs as root must not be root.
CONTAINER_USER = (1000, 1000)


class ConfigurationError(Exception):
    """The agent cannot start with these options."""


def main() -> int:
    """Run an agent with the options of the command line, and return the exit code.

    Return 0 after a requested stop, 1 if the cluster refuses the agent. Return 2, with a log line,
    if the options are unusable or the devices cannot be listed. Set the process's umask to 0077.
    """
    os.umask(0o077)
    try:
        return run(parse_options())
    except (ConfigurationError, SlotsUnknown) as error:
        write_log_line(str(error))
        return 2


def run(options: argparse.Namespace) -> int:
    """Build an agent from the options, and run the agent in this thread.

    Return 0 after a requested stop. If the cluster refuses the agent, log the reason and return 1.
    SIGTERM and SIGINT request a stop. SIGHUP ends an installed agent without its trials, which the
    next agent takes over. Raise ConfigurationError if the options are unusable, for example because
    another agent uses the work directory. Raise SlotsUnknown if the devices cannot be listed.
    """
    work = options.work_dir.absolute()
    slots = discover_slots(options.slots, options.cpu_slots, options.slot_type)
    with _lock_work_directory(work):
        slots = _keep_numbers(slots, work)
        authorities = _prepare_clients(options.url, options.pin, work)
        credential = _open_credential(options, work)
        token = _join_token(options, work, credential)
        schedule = SyncSchedule()

        def download(path: str, file: BinaryIO) -> int:
            client = Transport(options.url, session.token)
            try:
                return client.download(path, file)
            finally:
                client.close()

        updater = _open_updater(options, work, download)
        grants = TrialGrants(
            options.url, options.name, lambda: session.token, work, write_log_line, options.region
        )
        node = Node(
            work,
            slots,
            _container_runtime(options, work, slots, authorities),
            CodeCache(work / "cache/code", download),
            write_log_line,
            log_bytes_max=options.log_mib << 20,
            grants=grants,
            cache_limits=CacheLimits(
                options.kernel_cache_mib << 20, options.package_cache_mib << 20
            ),
        )
        identity = _identify(options, work, slots, updater)
        alive = AliveFile(options.alive_file) if options.alive_file is not None else None
        on_answer = _answer_recorder(alive, updater)
        session = Session(options.url, token, identity, node, schedule, write_log_line, on_answer)
        find_address = None if options.address else partial(local_address, options.url)
        session.use_machine(credential, find_address)
        grants.resume()
        _watch_machine(node, work, slots, session, is_replaceable=options.identity is not None)
        notices = notice_source(options.notices, work)
        ending = _self_termination(options, node, session, alive)
        stop = options.stop_seconds, write_log_line
        node.people = _occupancy_watch(options, session)
        agent = Agent(node, schedule, session, notices, *stop, alive, ending)
        agent.updater = updater

        def request_stop(*_: object) -> None:
            agent.stop_requests += 1

        signal.signal(signal.SIGTERM, request_stop)
        signal.signal(signal.SIGINT, request_stop)
        if updater is not None:
            signal.signal(signal.SIGHUP, lambda *_: setattr(agent, "is_handing_over", True))
        refusal = agent.run()
    if refusal is not None:
        write_log_line(refusal)
    return 0 if refusal is None else 1


def _identify(
    options: argparse.Namespace, work: Path, slots: Sequence[Slot], updater: CodeUpdater | None
) -> AgentIdentity:
    """Return the fields of the agent's enrolment."""
    return AgentIdentity(
        options.name,
        options.pool,
        slots,
        __version__,
        options.label,
        options.address or local_address(options.url),
        options.container_runtime,
        read_installation(work),
        "" if updater is None else updater.digest,
        only_user(),
    )


def write_log_line(message: str) -> None:
    """Write a line with the agent's prefix to the standard error, the agent's own log.

    Ignore an OSError.
    """
    # A full or closed log must not stop the agent. A direct write leaves nothing in a buffer: a
    # failing flush at the exit would change the exit code.
    with contextlib.suppress(OSError):
        os.write(2, f"detcloud agent: {message}\n".encode(errors="backslashreplace"))


def _watch_machine(
    node: Node, work: Path, slots: Sequence[Slot], session: Session, *, is_replaceable: bool
) -> None:
    """Watch the machine's disk and GPUs for faults, and the use of the slots.

    `is_replaceable` is whether the provisioner replaces the machine.
    """
    node.health = MachineHealth(
        work, slots, write_log_line, session.report_faults, is_replaceable=is_replaceable
    )
    reader: GpuReader | AmdReader | None = None
    if any(slot.type == "rocm" for slot in slots):
        from detcloud.agent.usage.amd import AmdReader

        reader = AmdReader(slots)
    if node.has_gpus:
        # Imported here to keep idle agents without GPUs small.
        from detcloud.agent.usage.nvml import GpuReader

        node.health.start()
        reader = GpuReader()
    UseSampler(node, slots, write_log_line, reader).start()


def _open_updater(
    options: argparse.Namespace, work: Path, download: Callable[[str, BinaryIO], int]
) -> CodeUpdater | None:
    """Return the updater of an installed agent. Return None for other agents."""
    if options.installed is None:
        return None
    from detcloud.agent.updates import CodeUpdater

    return CodeUpdater(
        options.installed, work, download, write_log_line, is_automatic=not options.no_updates
    )


def _answer_recorder(alive: AliveFile | None, updater: CodeUpdater | None) -> Callable[[], None]:
    """Return the function that is called after each successful sync."""

    def record_answer() -> None:
        if alive is not None:
            alive.record_answer()
        if updater is not None:
            updater.confirm()

    return record_answer


def _self_termination(
    options: argparse.Namespace, node: Node, session: Session, alive: AliveFile | None
) -> SelfTermination | None:
    """Return the object that ends this machine when the cluster's tick is dead.

    Return None on machines that the provisioner did not launch. Only an instance of the provisioner
    proves an identity, and only its boot script starts a watchdog.
    """
    if options.identity is None or alive is None:
        return None
    from detcloud.agent.self_termination import SelfTermination

    return SelfTermination(node, session, alive, write_log_line)


def _occupancy_watch(options: argparse.Namespace, session: Session) -> OccupancyWatch | None:
    """Return the watch over the use of the machine by people. None without such options.

    Raise ConfigurationError if the machine does not record logins at the console.
    """
    if not options.people_hours and not options.people_at_console:
        return None
    # Imported here to keep other idle agents small.
    from detcloud.agent.people.console import has_login_records
    from detcloud.agent.people.people_watch import OccupancyRules, OccupancyWatch

    if options.people_at_console and not has_login_records():
        raise ConfigurationError(
            "--people-at-console: this machine has neither /run/systemd/sessions nor /run/utmp; "
            "use --people-hours"
        )
    rules = OccupancyRules(
        tuple(options.people_hours),
        options.people_running,
        options.people_at_console,
        options.people_delay_minutes,
    )
    return OccupancyWatch(rules, write_log_line, session.report_occupancy)


def notice_source(source: str, work: Path) -> NoticeSource:
    """Return the source of notices of the machine's end for a value of `--notices`.

    `file` reads preemption-notice.json in `work`. A cloud's source starts its threads. Raise
    StopIteration for another value.
    """
    if source == "file":
        return FileNotices(work / "preemption-notice.json")
    cloud = next(cloud.name for cloud in CLOUDS if cloud.notices == source)
    return load_instance(cloud).start_notices()


def _container_runtime(
    options: argparse.Namespace, work: Path, slots: Sequence[Slot], authorities: Path | None
) -> ContainerRuntime:
    if options.container_runtime not in RUNTIMES:
        *others, last = RUNTIMES
        known, unknown = f"{', '.join(others)} or {last}", options.container_runtime
        raise ConfigurationError(f"{CONTAINER_RUNTIME} must be {known}, not {unknown!r}")
    _check_no_other_runtime(options.container_runtime, work)
    if options.container_runtime == "process":
        fork_server = None if options.plain_starts else _fork_server(work, slots)
        return ProcessRuntime(fork_server, work / DEFAULT_FOLDER)
    if options.container_runtime == "apptainer":
        return _apptainer_runtime(options, work, authorities)
    return _engine_runtime(options, work, authorities)


def _apptainer_runtime(
    options: argparse.Namespace, work: Path, authorities: Path | None
) -> ContainerRuntime:
    """Return the runtime of Apptainer. Raise ConfigurationError without a usable program."""
    from detcloud.agent.apptainer.program import ApptainerUnusable, find_program
    from detcloud.agent.apptainer.runtime import ApptainerRuntime
    from detcloud.agent.docker.container import ContainerRules

    runtime = "--container-runtime apptainer"
    for option in ("container_user", "container_memory_mib"):
        if getattr(options, option):
            raise ConfigurationError(f"{runtime}: remove --{option.replace('_', '-')}")
    try:
        program, version = find_program()
    except ApptainerUnusable as error:
        raise ConfigurationError(
            f"{runtime}: {error}, or run trials with --container-runtime process"
        ) from error
    write_log_line(f"trials run in containers of Apptainer {version}")
    allowed = None if options.allow_mount is None else tuple(options.allow_mount)
    rules = ContainerRules(work, options.name, os.getuid(), os.getgid(), allowed)
    rules = replace(rules, authorities=authorities, runtime="apptainer")
    return ApptainerRuntime(program, rules)


def _engine_runtime(
    options: argparse.Namespace, work: Path, authorities: Path | None
) -> ContainerRuntime:
    """Return the runtime of the machine's container engine.

    Raise ConfigurationError without a usable engine.
    """
    from detcloud.agent.docker import engine_choice
    from detcloud.agent.docker.container import ContainerRules
    from detcloud.agent.docker.engine import EngineClient, EngineError, EngineUnavailable
    from detcloud.agent.docker.runtime import DockerRuntime

    runtime = options.container_runtime
    try:
        engine = EngineClient(engine_choice.engine_socket(runtime, os.environ))
        facts = engine_choice.read_facts(engine)
    except (ValueError, EngineUnavailable, EngineError) as error:
        raise ConfigurationError(
            f"--container-runtime {runtime}: {error}; {engine_choice.START_TEXTS[runtime]}, name "
            f"its socket with {engine_choice.VARIABLES[runtime]}=unix:///PATH, or run trials with "
            "--container-runtime process"
        ) from error
    except engine_choice.EngineUnusable as error:
        raise ConfigurationError(f"--container-runtime {runtime}: {error}") from error
    write_log_line(f"trials run in containers of {facts.title}")
    own = (os.getuid(), os.getgid())
    user, group = options.container_user or facts.default_user(own, CONTAINER_USER)
    rules = ContainerRules(
        work,
        options.name,
        user,
        group,
        None if options.allow_mount is None else tuple(options.allow_mount),
        (options.container_memory_mib or 0) << 20,
        authorities=authorities,
        runtime=runtime,
        is_podman=facts.is_podman,
        is_rootless=facts.is_rootless,
        user_namespace=facts.user_namespace,
    )
    return DockerRuntime(engine, rules, write_log_line)


def _prepare_clients(url: str, pin: str, work: Path) -> Path | None:
    """Complete the agent's variables for proxies and authorities, which trials inherit.

    Let all connections to the cluster at `url` accept only the certificate of `pin`, unless `pin`
    is "". Return the file of authorities in the work directory. Return None if the agent's
    environment names no authority. Raise ConfigurationError if a variable names an unusable file,
    or an unusable proxy for the cluster, and for an unusable pin.
    """
    try:
        if pin:
            pin_server(url, pin)
        for address in split_addresses(url):
            find_proxy(address)
        return complete_environment(os.environ, work)
    except InvalidValue as error:
        raise ConfigurationError(str(error)) from error


def _check_no_other_runtime(runtime: str, work: Path) -> None:
    """Raise ConfigurationError if the work directory has an active trial of another runtime."""
    for launch_file in dict.fromkeys(RUNTIMES.values()):
        for launch in work.glob(f"allocations/*/agent/{launch_file}"):
            other = _recorded_runtime(launch)
            if other == runtime:
                continue
            report = AgentReport(launch.with_name("report-agent.jsonl"))
            if not any(record.get("kind") == "exited" for record in report.records()):
                raise ConfigurationError(
                    f"{launch.parents[1]} was begun with --container-runtime {other}; let it end "
                    "under an agent with that option first"
                )


def _keep_numbers(slots: Sequence[Slot], work: Path) -> list[Slot]:
    """Return the slots with the numbers of earlier starts."""
    if all(slot.type == "cpu" for slot in slots):
        return list(slots)
    # Imported here to keep idle agents without GPUs small.
    from detcloud.agent.slot_numbers import keep_numbers

    return keep_numbers(slots, work)


def _recorded_runtime(launch: Path) -> str:
    """Return the name of the runtime that wrote a launch's record. Older records name none."""
    if launch.name == RUNTIMES["process"]:
        container = (read_json_object(launch) or {}).get("container") or {}
        return str(container.get("runtime", "process"))
    return str((read_json_object(launch) or {}).get("runtime", "docker"))


def _fork_server(work: Path, slots: Sequence[Slot]) -> ForkServer | None:
    if sys.platform != "linux":
        # On other systems, forking a process that has imported torch is not safe.
        return None
    environment = shared_environment(os.environ, threads_per_slot(slots))
    return ForkServer(work / "template", environment, write_log_line)


def _open_credential(options: argparse.Namespace, work: Path) -> Credential | None:
    """Return the credential in the work directory. None for an instance of a cloud.

    A join token in the work directory is deleted as soon as the credential is valid.
    """
    if options.identity is not None:
        return None
    path = options.token_file
    is_own = path is not None and path.absolute().parent == work
    return Credential(work / "credential.json", path.absolute() if is_own else None)


def _join_token(options: argparse.Namespace, work: Path, credential: Credential | None) -> str:
    """Return the join token of the options, or of the instance.

    Return "" if the file is missing and the machine has a credential. Raise ConfigurationError for
    unusable options or an unusable file, and if the cluster refuses the instance.
    """
    if (options.token_file is None) == (options.identity is None):
        identities = " or ".join(f"--identity {cloud.name}" for cloud in CLOUDS)
        raise ConfigurationError(f"give either --token-file or {identities}")
    if options.identity is None:
        is_needed = credential is None or not credential.is_usable
        if not is_needed and not options.token_file.exists():
            return ""
        return _read_token(options.token_file)
    if not options.cluster:
        identity = f"--identity {options.identity}"
        raise ConfigurationError(f"{identity} needs --cluster, the id of the cluster")
    from detcloud.agent.join_token import IdentityRefused, obtain_join_token

    make_proof = partial(load_instance(options.identity).make_proof, options.cluster)
    path = work / "join.token"
    try:
        return obtain_join_token(path, options.url, options.pool, make_proof, write_log_line)
    except IdentityRefused as error:
        raise ConfigurationError(f"the cluster does not let this instance in: {error}") from error


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the token file {path} could not be read: {error}") from error
    if not token:
        raise ConfigurationError(
            f"the token file {path} is empty; it must hold the pool's join token"
        )
    return token


def _lock_work_directory(work: Path) -> BinaryIO:
    """Create the work directory if needed, and lock it against a second agent.

    Return the open lock file, which keeps the lock until it is closed. Raise ConfigurationError if
    another agent has the lock.
    """
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = (work / "agent.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigurationError(
            f"another agent works in {work}; give each its own --work-dir"
        ) from None
    return lock


if __name__ == "__main__":
    sys.exit(main())
