"""The life of an embedded cluster on a single machine: server, threads and agent."""

import getpass
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp

from control_plane.access.tunnel_relay import TunnelRelay
from control_plane.config.__main__ import read_config
from control_plane.state.table import TableError
from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.version import __version__
from lambdas.clock import now_ms
from local_cluster.adapters import LOOPBACK, PublicPlace
from local_cluster.agent_process import AgentKeeper, agent_command, kill_former_agent
from local_cluster.backup_places import open_backup_place
from local_cluster.backup_schedule import BackupThread
from local_cluster.cluster_id import read_cluster_id
from local_cluster.embedded_cluster import EmbeddedCluster, build_embedded_cluster, own_agent_name
from local_cluster.first_run import announce_start
from local_cluster.group_member import GroupMember
from local_cluster.health_routes import HealthRoutes
from local_cluster.home import HomeFolder, HomeInvalid
from local_cluster.http_server import (
    CLOSE_SECONDS_MAX,
    THREADS_BY_DATABASE,
    THREADS_BY_FILE,
    EmbeddedServer,
    configure_logging,
    open_listener,
)
from local_cluster.object_bucket import claim_bucket
from local_cluster.provisioning_thread import ProvisioningThread
from local_cluster.server_group import join_group
from local_cluster.service import (
    OpenService,
    ServiceSettings,
    create_certificate,
    machine_address,
    open_service,
)
from local_cluster.systemd_notices import notify_systemd
from local_cluster.tick_thread import TickThread
from local_cluster.trusted_proxies import TrustedProxies
from local_cluster.tunnel_relay import load_relay

PORT_RECORD = "port"
SERVICE_CLOSE_SECONDS_MAX = 10
"""How long uploads and downloads of other machines may take after the stop of the agents."""


def serve(
    home: HomeFolder,
    slots: int | None,
    port: int | None,
    config: Path | None = None,
    settings: ServiceSettings | None = None,
) -> None:
    """Run an embedded cluster until SIGTERM or SIGINT, then stop the cluster's agents.

    The caller holds the folder's lock. Logs, the port and the server's address are written to the
    folder; the address is deleted at the end. The machine's own agent is started, unless the
    default pool has a provider, or `settings` exclude the agent.

    Args:
        slots: the number of CPU slots of the own agent. None for slots of the detected devices.
        port: the port to listen on. None for the former port or the next free port.
        config: the path of a cluster configuration to apply first. None to keep the current pools.
        settings: the settings of a server that other machines call, which replace `port`. None for
            a server that only this machine calls.

    Raises:
        OSError: the address is not available, or a file cannot be read or written.
        ConfigInvalid: the configuration is invalid.
        RequestError: the configuration cannot be applied.
        HomeInvalid: a file with a secret or a certificate is invalid, or the bucket with the
            objects cannot be used.
        TableError: the state table cannot be used.
    """
    configure_logging(home.folder / "server.log")
    # A killed server leaves its record, which would mislead commands.
    home.remove_record("server")
    home.checkpoints.mkdir(parents=True, exist_ok=True)
    with home.state.starting():
        name = _join_group(home, settings)
        service = _open_recorded_service(home, port, settings)
        place = None if settings is None else PublicPlace(service.url, service.hosts)
        embedded, member, relay = _build_member(home, name, service, place, config)
    embedded.app.state.allows_plain_cookies = settings is not None and settings.insecure_http
    app = embedded.app if settings is None else _restore_requests(embedded.app, settings)
    health = HealthRoutes(app, lambda: read_cluster_id(embedded.table))
    life = _ServerLife(home, member, service, settings, slots, health)
    server = EmbeddedServer(
        health,
        life.start,
        life.stop,
        relay.secret,
        public=service.public,
        close_seconds_max=CLOSE_SECONDS_MAX if settings is None else SERVICE_CLOSE_SECONDS_MAX,
        threads=THREADS_BY_DATABASE if home.state.is_shareable else THREADS_BY_FILE,
    )
    try:
        server.run(sockets=[service.local])
    finally:
        service.close()
        life.end()


class _ServerLife:
    """The threads and the agent of a server, from the first request to the last.

    Args:
        home: the data folder.
        member: the server as a member of the group of servers, with the cluster.
        service: the open sockets.
        settings: the settings of a server that other machines call, or None.
        slots: the number of CPU slots of the own agent, or None.
        health: the routes that report the beginning of the stop.
    """

    def __init__(
        self,
        home: HomeFolder,
        member: GroupMember,
        service: OpenService,
        settings: ServiceSettings | None,
        slots: int | None,
        health: HealthRoutes,
    ) -> None:
        self._home = home
        self._member = member
        self._embedded = embedded = member.embedded
        self._service = service
        self._settings = settings
        self._health = health
        has_agent = settings is None or settings.has_agent
        self._own_pool = embedded.own_pool if has_agent else ""
        self._record: dict[str, object] = {
            "url": service.local_url,
            "pid": os.getpid(),
            "started_ms": now_ms(),
            "version": __version__,
        }
        if settings is not None:
            pin = None if service.certificate is None else service.certificate.pin
            self._record |= {"public_url": service.url, "pin": pin}
        self._tick_thread = _build_tick_thread(member)
        self._provisioning_thread = ProvisioningThread(
            embedded.cluster.provisioner, is_on_duty=member.is_launching
        )
        self._backup_thread = _build_backup_thread(home, embedded, settings)
        name = own_agent_name(self._own_pool, member.name)
        command = agent_command(home, service.local_url, name, self._own_pool, slots)
        if settings is not None and not settings.is_loopback:
            # Trials of other machines cannot reach the address by which the agent calls the server.
            command += ["--address", machine_address()]
        self._agent = AgentKeeper(home, command, self._record_agent)

    def start(self) -> None:
        """Record the server, and start the threads and the own agent. Called when requests are
        served.
        """
        self._home.write_record("server", {**self._record, "agent_pid": None})
        self._member.start()
        self._tick_thread.start()
        self._embedded.start_threads()
        if self._own_pool:
            self._agent.start()
        else:
            kill_former_agent(self._home)
        self._provisioning_thread.start()
        if self._backup_thread is not None:
            self._backup_thread.start()
        if self._settings is not None:
            announce_start(self._home, self._embedded, self._service)
        notify_systemd("READY=1")

    def stop(self) -> None:
        """Stop the agents, which report the exits of the trials while the API still answers.

        Then end the long polls. Agents of other machines keep their trials and call again.
        """
        notify_systemd("STOPPING=1")
        self._health.stop()
        launcher, cluster_id = self._embedded.adapters.launcher, self._embedded.adapters.cluster_id
        self._provisioning_thread.stop()
        launcher.ask_to_stop(cluster_id)
        self._agent.stop()
        launcher.wait_for_stop(cluster_id)
        self._embedded.adapters.long_polls.end_all()

    def end(self) -> None:
        """Stop the threads, delete the record, advance the mark and close the state."""
        self._home.remove_record("server")
        if self._backup_thread is not None:
            self._backup_thread.stop()
        self._tick_thread.stop()
        self._embedded.stop_threads()
        self._member.stop()
        with suppress(TableError, OSError):
            self._embedded.mark.advance()
        self._embedded.table.close()

    def _record_agent(self, pid: int) -> None:
        self._home.write_record("server", {**self._record, "agent_pid": pid})


def _build_backup_thread(
    home: HomeFolder, embedded: EmbeddedCluster, settings: ServiceSettings | None
) -> BackupThread | None:
    """Build the thread of scheduled backups. Return None without a schedule.

    The thread is not started. Raises HomeInvalid for a place that cannot be used.
    """
    schedule = None if settings is None else settings.backups
    if schedule is None:
        return None
    try:
        place = open_backup_place(schedule.place)
    except (BucketError, ValueError) as error:
        raise HomeInvalid(f"--backup-to: {error}") from None
    return BackupThread(home, embedded.adapters.cluster_id, schedule, place)


def _restore_requests(app: ASGIApp, settings: ServiceSettings) -> TrustedProxies:
    """Return the application behind the reverse proxies of the settings."""
    return TrustedProxies(
        app, settings.proxies, settings.prefix, only_proxies=settings.only_proxies
    )


def _join_group(home: HomeFolder, settings: ServiceSettings | None) -> str:
    """Join the group of servers, and check the bucket with the objects; return the server's name.

    No other server of the state starts meanwhile. Raises as `serve` does.
    """
    create = None
    if settings is not None and settings.is_self_signed:
        create = partial(create_certificate, home, settings)
    name = join_group(home, create)
    claim_bucket(home)
    return name


def _build_member(
    home: HomeFolder,
    name: str,
    service: OpenService,
    place: PublicPlace | None,
    config: Path | None,
) -> tuple[EmbeddedCluster, GroupMember, TunnelRelay]:
    """Return the parts of the server `name`, the member and the relay. Raises as `serve` does."""
    text = None if config is None else read_config(str(config))
    url = service.local_url if place is None else place.url
    relay = load_relay(home)
    embedded = build_embedded_cluster(
        home, getpass.getuser(), text, service.local_url, relay, name, place
    )
    return embedded, GroupMember(home, embedded, name, url), relay


def _build_tick_thread(member: GroupMember) -> TickThread:
    """Build the thread of the periodic maintenance. The thread is not started."""
    embedded = member.embedded
    cluster = embedded.cluster
    calls = cluster.check_alarms, embedded.mark.advance, cluster.export_telemetry
    return TickThread(
        cluster.engine,
        cluster.collector,
        *calls,
        embedded.delivery_thread.wake,
        find_services=lambda: cluster.services,
        is_on_duty=member.is_ticking,
    )


def _open_recorded_service(
    home: HomeFolder, port: int | None, settings: ServiceSettings | None
) -> OpenService:
    """Open the listening sockets, and write the port for this machine to the record PORT_RECORD.

    Without `settings` and `port`, prefer the recorded port of the former server. Raises OSError if
    an address is not available or a record cannot be written, and HomeInvalid for a certificate
    that is not usable.
    """
    recorded = home.read_record(PORT_RECORD).get("port")
    former = recorded if isinstance(recorded, int) else None
    if settings is None:
        listener = open_listener(port, former)
        service = OpenService(listener, None, "", LOOPBACK, None)
    else:
        service = open_service(home, settings, former)
    home.write_record(PORT_RECORD, {"port": service.local.getsockname()[1]})
    return service
