"""The link between the servers of a state on PostgreSQL: notices of commits, and the claim.

A server announces the names of changed actors and partitions. A thread joins all names of a few
milliseconds into a notice, and sends the notice after the commits. A notice within a commit would
be slower: PostgreSQL lets only one transaction with a notice commit at a time.

Notices may be lost with a connection. After each new connection, the receiver polls once. Without a
connection, the receiver polls every second.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Protocol

import psycopg
from psycopg.sql import SQL, Identifier

from control_plane.postgres.state_table import END_DEAD_CONNECTIONS, try_claim

log = logging.getLogger(__name__)

JOIN_SECONDS = 0.003
"""The time in which names are joined into a notice."""
NOTICE_BYTES_MAX = 7_900
"""The longest text of a notice. PostgreSQL allows 8,000 bytes."""
NOTICES_MAX = 4
"""The most notices that are sent at a time. More names are replaced by EVERYTHING."""
NAMES_MAX = 2_000
"""The most names that wait to be sent. More names are replaced by EVERYTHING."""
EVERYTHING = "*"
"""The name that stands for all names."""
POLL_SECONDS = 1.0
"""The interval of polls and of attempts to connect without a connection."""
CHECK_SECONDS = 5.0
"""The interval at which the receiver checks a silent connection."""
STOP_SECONDS_MAX = 5.0

# A dead machine or network must not look like a silent connection.
_PARAMETERS: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# A lost notice does no harm, so that its commit need not wait for the disk.
_SETTINGS = "set synchronous_commit = off; set statement_timeout = '10s'"

_Connection = psycopg.Connection[Any]


class LinkListener(Protocol):
    """The receiver of a link's events. The methods are called in the link's thread."""

    def on_names(self, names: Sequence[str]) -> None:
        """Handle the names that another server has announced."""

    def on_gap(self) -> None:
        """Poll everything, because notices may have been lost."""

    def on_excluded(self) -> None:
        """Stop the server, because the state is being replaced."""


class ServerLink:
    """The link of a server to each further server of a state.

    Args:
        conninfo: the address of the database.
        schema: the schema of the state.
        listener: receives the events.
    """

    def __init__(self, conninfo: str, schema: str, listener: LinkListener) -> None:
        self._conninfo = conninfo
        self._schema = schema
        self._channel = f"detcloud_{blake2b(schema.encode(), digest_size=12).hexdigest()}"
        self._listener = listener
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._names: dict[str, None] = {}
        self._has_names = threading.Event()
        self._sender_pid = 0
        self._threads = [
            threading.Thread(target=self._receive, name="server notices", daemon=True),
            threading.Thread(target=self._send, name="server announcements", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads. A link starts only once."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads, and wait at most STOP_SECONDS_MAX for each thread."""
        self._stopped.set()
        self._has_names.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(STOP_SECONDS_MAX)

    def announce(self, name: str) -> None:
        """Queue a name, which a thread sends to all servers within a few milliseconds."""
        with self._lock:
            if len(self._names) >= NAMES_MAX:
                self._names = {EVERYTHING: None}
            self._names[name] = None
        self._has_names.set()

    def _send(self) -> None:
        """Send notices until the link is stopped."""
        while not self._stopped.is_set():
            try:
                with self._connection() as connection:
                    self._sender_pid = connection.info.backend_pid
                    self._send_over(connection)
            except psycopg.Error as error:
                log.info("the other servers get no notices now: %s", str(error).strip())
                self._stopped.wait(POLL_SECONDS)

    def _send_over(self, connection: _Connection) -> None:
        """Send notices over a connection until the link is stopped. Raises psycopg.Error."""
        statement = SQL("select pg_notify({}, notice) from unnest(%s::text[]) as notice").format(
            self._channel
        )
        while True:
            self._has_names.wait()
            if self._stopped.wait(JOIN_SECONDS):
                # Wake this server's own receiver.
                connection.execute(statement, ([""],))
                return
            self._has_names.clear()
            with self._lock:
                names, self._names = list(self._names), {}
            try:
                connection.execute(statement, (notices(names),))
            except psycopg.Error:
                # The receivers have missed names.
                self.announce(EVERYTHING)
                raise

    def _receive(self) -> None:
        """Receive notices until the link is stopped. Poll without a connection."""
        while not self._stopped.is_set():
            try:
                with self._connection() as connection:
                    if not try_claim(connection, self._schema, is_shared=True):
                        log.error("the state is being replaced by a restore, a move or a deletion")
                        self._listener.on_excluded()
                        return
                    connection.execute(SQL("listen {}").format(Identifier(self._channel)))
                    self._listener.on_gap()
                    self._receive_over(connection)
            except psycopg.Error as error:
                log.warning("no notices of other servers: %s", str(error).strip())
                self._listener.on_gap()
                self._stopped.wait(POLL_SECONDS)

    def _receive_over(self, connection: _Connection) -> None:
        """Receive notices over a connection until the link is stopped. Raises psycopg.Error."""
        while not self._stopped.is_set():
            for notice in connection.notifies(timeout=CHECK_SECONDS):
                if self._stopped.is_set():
                    return
                if notice.pid != self._sender_pid:
                    self._handle(notice.payload)
            connection.execute("select 1")

    def _handle(self, payload: str) -> None:
        """Pass the names of a notice to the listener."""
        names = payload.split("\n")
        if EVERYTHING in names:
            self._listener.on_gap()
        else:
            self._listener.on_names(names)

    @contextmanager
    def _connection(self) -> Iterator[_Connection]:
        """Open a connection for the block. Raises psycopg.Error."""
        with psycopg.connect(self._conninfo, **_PARAMETERS) as connection:
            connection.execute(_SETTINGS)
            connection.execute(END_DEAD_CONNECTIONS)
            yield connection


def notices(
    names: Iterable[str], bytes_max: int = NOTICE_BYTES_MAX, notices_max: int = NOTICES_MAX
) -> list[str]:
    """Join names into notices of at most `bytes_max` bytes, with a name in each line.

    Return only the notice EVERYTHING for more than `notices_max` notices, and for a name that is
    too long or has several lines.
    """
    joined: list[list[str]] = [[]]
    left = bytes_max
    for name in names:
        size = len(name.encode()) + 1
        if size > bytes_max or "\n" in name or not name:
            return [EVERYTHING]
        if size > left:
            joined.append([])
            left = bytes_max
        joined[-1].append(name)
        left -= size
    if len(joined) > notices_max:
        return [EVERYTHING]
    return ["\n".join(lines) for lines in joined if lines]
