"""`python -m lambdas.aws.relay_task`: the relay of tunnels as a task of AWS Fargate.

The task makes a key and a certificate, listens, and writes its public address and the digest of the
certificate into the relay's row. The task ends when no tunnel has used the relay for ten minutes,
when another task has replaced the row, and on SIGTERM.
"""

import asyncio
import base64
import contextlib
import faulthandler
import ipaddress
import logging
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from control_plane.access.relay_record import BEAT_MS, RelayRecord, decode_relay
from control_plane.aws.state_table import DynamoDbTable, create_client
from control_plane.state.table import TableError, Unavailable
from control_plane.usecases.relay_row import OwnRow, RowLost
from detcloud.shared.tunnel.keys import certificate_pin, make_key, relay_context
from lambdas.aws import relay_boot
from relay.server import Relay

log = logging.getLogger(__name__)

ADDRESS_URL = "https://checkip.amazonaws.com"


@dataclass(frozen=True)
class TaskTimes:
    """The times of a relay's task, in seconds."""

    beat: float = BEAT_MS / 1000
    """The time between two renewals of the row."""
    idle: float = 600.0
    """The time without a tunnel after which the task ends."""
    linger: float = 75.0
    """The time for which an ending task serves tickets that the API issued before.

    A ticket is valid for a minute.
    """
    confirmed: float = 30.0
    """The time in which the API must name the task in the row."""
    silent_max: float = 300.0
    """The time without a successful renewal after which the task ends."""


@dataclass(frozen=True)
class TaskSettings:
    """The environment of the relay's task."""

    record: RelayRecord
    revision: int
    table: str = ""
    port: int = relay_boot.HTTPS_PORT
    user: int | None = None
    """The number of the user to become, or None to stay."""
    address_url: str = ADDRESS_URL
    times: TaskTimes = field(default_factory=TaskTimes)


def main() -> int:
    """Run the relay until the end of the task, and return 0.

    Return 1, after a line in the log, if the task gets no address or no row, or if the row is lost.
    Return 2 if the environment lacks a variable.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        settings = read_settings(os.environ)
    except (KeyError, ValueError, TypeError) as error:
        # The message names the variable. It never contains the value, which has a secret.
        print(f"detcloud relay: the environment is invalid: {error!r:.80}", file=sys.stderr)
        return 2
    table = DynamoDbTable(create_client(), settings.table)
    row = OwnRow(table, settings.record, settings.revision, _now_ms)
    try:
        asyncio.run(RelayTask(settings, row, watch=_end_later).run())
    except (RowLost, TableError, OSError, ValueError) as error:
        log.error("the relay ends: %s", error)
        return 1
    return 0


def read_settings(environment: Mapping[str, str]) -> TaskSettings:
    """Read the variables of relay_boot. Raise KeyError, ValueError or TypeError."""
    user = environment.get(relay_boot.USER, "")
    return TaskSettings(
        decode_relay(environment[relay_boot.RECORD].encode()),
        int(environment[relay_boot.REVISION]),
        environment[relay_boot.TABLE],
        int(environment.get(relay_boot.PORT, str(relay_boot.HTTPS_PORT))),
        int(user) if user else None,
        environment.get(relay_boot.ADDRESS_URL, ADDRESS_URL),
    )


class RelayTask:
    """The relay, with the row of the relay."""

    def __init__(
        self,
        settings: TaskSettings,
        row: OwnRow,
        find_address: Callable[[str], str] | None = None,
        watch: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """Create a task. `run` begins to listen.

        Args:
            settings: the environment.
            row: the row to write.
            find_address: returns the public address, given the URL of the settings.
            watch: called before each renewal. Ends a process that does not call again within the
                given seconds.
        """
        self._settings, self._row = settings, row
        self._find_address = find_address or find_public_address
        self._watch = watch
        self._stopped: asyncio.Event | None = None
        self.port = 0
        """The port, which is known once the row has the address."""

    def stop(self) -> None:
        """End the relay. Call this in the thread of `run`, for example on a signal."""
        if self._stopped is not None:
            self._stopped.set()

    async def run(self) -> None:
        """Serve tunnels until the end of the task.

        Raise RowLost, TableError or OSError, or ValueError for an invalid answer about the address.
        """
        settings = self._settings
        self._stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # A thread of a test may not handle signals.
            with contextlib.suppress(ValueError, RuntimeError):
                loop.add_signal_handler(number, self.stop)
        key = make_key()
        relay = Relay(base64.b64decode(settings.record.secret), _now_ms)
        bound = await relay.start("0.0.0.0", settings.port, relay_context(key))
        _become_user(settings.user)
        try:
            address = await asyncio.to_thread(self._find_address, settings.address_url)
            suffix = "" if bound == relay_boot.HTTPS_PORT else f":{bound}"
            await self._announce(f"https://{address}{suffix}", certificate_pin(key))
            self.port = bound
            log.info("the relay listens at %s, port %d", address, bound)
            await self._renew_until_idle(relay)
        finally:
            await relay.stop()

    async def _announce(self, url: str, pin: str) -> None:
        """Write the address, once the API has named the task in the row.

        Raise RowLost if the API does not do so in time, for example because another task has won.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.times.confirmed
        while True:
            try:
                return await asyncio.to_thread(self._row.announce, url, pin)
            except (RowLost, Unavailable):
                if loop.time() > deadline:
                    raise
            await asyncio.sleep(1.0)

    async def _renew_until_idle(self, relay: Relay) -> None:
        """Renew the row until the relay is idle or stopped, and write the end into the row.

        A relay that ends for idleness serves late tickets first. Raise RowLost, and Unavailable if
        the table does not answer for a long time.
        """
        times, loop = self._settings.times, asyncio.get_running_loop()
        renewed_at = loop.time()
        while relay.idle_seconds < times.idle:
            self._watch(times.silent_max + times.beat)
            if await self._is_stopped_within(times.beat):
                break
            try:
                await asyncio.to_thread(self._row.renew)
                renewed_at = loop.time()
            except Unavailable as error:
                log.warning("the row was not renewed: %s", error)
                if loop.time() - renewed_at > times.silent_max:
                    raise
        self._watch(times.silent_max + times.linger)
        await asyncio.to_thread(self._row.end)
        log.info("the relay ends")
        await self._is_stopped_within(times.linger)

    async def _is_stopped_within(self, seconds: float) -> bool:
        """Wait for the stop, at most `seconds`. Return whether the task is stopped."""
        assert self._stopped is not None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)
        return self._stopped.is_set()


def find_public_address(url: str) -> str:
    """Return the public address of this machine, which the service at `url` answers as text.

    Raise OSError without an answer, and ValueError for an answer that is no IPv4 address. A
    wrong answer cannot redirect tunnels, because the ends pin the certificate.
    """
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read(100).decode("ascii").strip()
    return str(ipaddress.IPv4Address(text))


def _end_later(seconds: float) -> None:
    """End this process after `seconds`, with a traceback, unless this function is called again.

    A task that hangs must not run, and cost money, for ever.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)


def _become_user(user: int | None) -> None:
    """Continue as the user with this number. Only root may listen on the port before."""
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
