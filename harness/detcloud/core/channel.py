"""Channels between the processes of a trial, each of which connects to the chief, rank 0.

The connections are those of `multiprocessing`: over a socket file on one machine, over TCP between
machines. Only a process that knows the trial's allocation can authenticate.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pickle
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from detcloud.shared.errors import DetcloudError

Address = str | tuple[str, int]
JOIN_SECONDS_MAX = 600.0
RETRY_SECONDS = 0.05
_ACCEPT_SECONDS = 5.0
_SOCKET_BYTES_MAX = 100


@dataclass(frozen=True)
class Patience:
    """The time after which a waiting process reports the missing ranks."""

    seconds: float
    """The time, for each set of missing ranks."""
    on_missing: Callable[[tuple[int, ...]], None]
    """Called with the missing ranks, on rank 0 once for each set of missing ranks, and on any
    other rank once, with rank 0. A thread may make the call.
    """


def local_address(name: str) -> str:
    """Return the path of the socket file `name`, in DETCLOUD_GANG_FOLDER or the temporary folder.

    Return a path in /tmp if that path is too long for a socket. Create nothing.
    """
    folder = os.environ.get("DETCLOUD_GANG_FOLDER") or tempfile.gettempdir()
    path = f"{folder}/{name}.sock"
    if len(os.fsencode(path)) > _SOCKET_BYTES_MAX:
        path = f"/tmp/{name}.sock"
    return path


def channel_key(*parts: object) -> bytes:
    """Return the authentication key of a trial's processes: the SHA-256 of `parts` joined by
    slashes.
    """
    return hashlib.sha256("/".join(map(str, parts)).encode()).digest()


class Channel:
    """The connections between rank 0 and each other rank.

    On rank 0, `workers` are the connections to the other ranks in the order of the ranks. On every
    other rank, `chief` is the connection to rank 0. A process alone has neither.
    """

    def __init__(
        self,
        workers: Sequence[Connection[Any, Any]] = (),
        chief: Connection[Any, Any] | None = None,
    ) -> None:
        self.workers = list(workers)
        self.chief = chief

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks, in the order of the ranks, on rank 0.

        Rank 0 waits for all ranks. Return None on the other ranks, which only send. Every rank must
        call this. A process alone gets a list of its own value. Raises DetcloudError on rank 0 if
        another process has exited, on the other ranks if rank 0 has exited. Raises errors of
        pickling.
        """
        if self.chief is not None:
            _send(self.chief, value)
            return None
        return [value, *(_receive(worker, rank + 1) for rank, worker in enumerate(self.workers))]

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank; ignore the argument elsewhere.

        Every rank must call this; all but rank 0 wait. A process alone gets `value` itself. Raises
        DetcloudError if another process has exited, and errors of pickling.
        """
        if self.chief is not None:
            return _receive(self.chief, 0)
        for worker in self.workers:
            _send(worker, value)
        return value

    def close(self) -> None:
        """Close the connections of this process. A waiting process gets a DetcloudError."""
        for connection in (*self.workers, *([self.chief] if self.chief else [])):
            connection.close()


def open_channels(
    rank: int,
    size: int,
    address: Address,
    key: bytes,
    count: int,
    patience: Patience | None = None,
) -> list[Channel]:
    """Open `count` channels between `size` ranks, all of which must call this within 10 minutes.

    Return the channels in the same order on every rank. Rank 0 listens at `address`; the other
    ranks connect and authenticate with `key`, and retry until rank 0 listens. With a `size` of 1,
    return channels without connections. `patience` names the ranks that are missing meanwhile.

    Raises DetcloudError if a rank does not connect in time or two processes claim a rank. Raises
    DetcloudError if rank 0 cannot listen at the address.
    """
    if size == 1:
        return [Channel() for _ in range(count)]
    if rank:
        with _watch_for_chief(patience):
            return [Channel(chief=_connect(rank, index, address, key)) for index in range(count)]
    connections = _accept(size, address, key, count, patience)
    return [Channel([connections[n, index] for n in range(1, size)]) for index in range(count)]


@contextlib.contextmanager
def _watch_for_chief(patience: Patience | None) -> Iterator[None]:
    """Name rank 0 as missing if the block takes longer than the patience.

    A thread waits, because a packet filter can hold an attempt to connect for two minutes.
    """
    if patience is None:
        yield
        return
    timer = threading.Timer(patience.seconds, patience.on_missing, ((0,),))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _accept(
    size: int, address: Address, key: bytes, count: int, patience: Patience | None
) -> dict[tuple[int, int], Connection[Any, Any]]:
    """Listen at `address` until all ranks but 0 have connected, at most JOIN_SECONDS_MAX.

    Return the connections by rank and index of the channel. A closed connection of a rank is
    replaced by a new one. First delete the socket file of a process that no longer listens.

    Raises DetcloudError if a rank is missing at the end, or if this process cannot listen. Also if
    another process listens at the socket file, or two processes claim a rank.
    """
    if isinstance(address, str):
        if _is_listening(address):
            raise DetcloudError(_rank_conflict(0, size))
        # A killed process of an earlier attempt leaves a socket file.
        Path(address).unlink(missing_ok=True)
    connections: dict[tuple[int, int], Connection[Any, Any]] = {}
    listener = _listen(address, size, count, key)
    begun_at = time.monotonic()
    named: tuple[int, ...] = ()
    with listener:
        _limit_waiting(listener, patience.seconds / 2 if patience else _ACCEPT_SECONDS)
        while len(connections) < (size - 1) * count:
            waited = time.monotonic() - begun_at
            missing = tuple(n for n in range(1, size) if (n, 0) not in connections)
            if patience and waited >= patience.seconds and missing not in ((), named):
                named = missing
                patience.on_missing(missing)
            if waited > JOIN_SECONDS_MAX:
                ranks = ", ".join(map(str, missing))
                raise DetcloudError(
                    f"ranks {ranks} of {size} did not connect within {JOIN_SECONDS_MAX:.0f} s: "
                    "every process has to make its DistributedContext"
                )
            with contextlib.suppress(AuthenticationError, EOFError, OSError):
                connection = listener.accept()
                rank, index = connection.recv()
                earlier = connections.get((rank, index))
                if earlier is not None and not _is_gone(earlier):
                    raise DetcloudError(_rank_conflict(rank, size))
                connections[rank, index] = connection
    return connections


def _listen(address: Address, size: int, count: int, key: bytes) -> Listener:
    """Listen at the address, or on all interfaces if no interface of this machine has the address.

    `size` is the number of ranks and `count` the number of channels of each rank; together, all may
    wait to be accepted. Clients authenticate with `key`.

    Raises DetcloudError if neither is possible, for example because the port is in use.
    """
    backlog = size * count
    try:
        return Listener(address, backlog=backlog, authkey=key)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL and not isinstance(address, str):
            with contextlib.suppress(OSError):
                return Listener(("", address[1]), backlog=backlog, authkey=key)
        hint = f"; perhaps {_rank_conflict(0, size)}" if error.errno == errno.EADDRINUSE else ""
        raise DetcloudError(f"the chief cannot listen at {address}: {error}{hint}") from None


def _rank_conflict(rank: int, size: int) -> str:
    """Return the message that two processes claim `rank`."""
    return (
        f"two processes of this trial claim to be rank {rank} of {size}: give each process "
        "its own rank, as `python3 -m detcloud.launch.torch_distributed` does"
    )


def _is_listening(path: str) -> bool:
    """Return whether a process listens at the socket file `path`. Send nothing to the process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


def _is_gone(connection: Connection[Any, Any]) -> bool:
    """Return whether the remote end was closed and no data is left. Read no data."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        try:
            return end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def _limit_waiting(listener: Listener, seconds: float) -> None:
    """Make `accept` time out after `seconds`, at most _ACCEPT_SECONDS.

    `multiprocessing` has no argument for a timeout.
    """
    inner: Any = getattr(listener, "_listener", None)
    inner._socket.settimeout(min(seconds, _ACCEPT_SECONDS))


def _connect(rank: int, index: int, address: Address, key: bytes) -> Connection[Any, Any]:
    """Connect to the chief, retrying for JOIN_SECONDS_MAX, and send the rank and the channel's
    index.

    Raises DetcloudError if the chief cannot be reached in this time.
    """
    give_up_at = time.monotonic() + JOIN_SECONDS_MAX
    while True:
        try:
            connection = Client(address, authkey=key)
            connection.send((rank, index))
        except (OSError, EOFError, AuthenticationError) as error:
            if time.monotonic() > give_up_at:
                raise DetcloudError(
                    f"rank {rank} cannot reach the chief at {address}: {error}"
                ) from None
            time.sleep(RETRY_SECONDS)
        else:
            return connection


def _send(connection: Connection[Any, Any], value: Any) -> None:
    """Send a pickled value.

    Raises DetcloudError if the other process has exited, and the errors of pickling `value`.
    """
    try:
        # `send` would pass tensors in shared memory, which other machines cannot read.
        connection.send_bytes(pickle.dumps(value))
    except OSError as error:
        raise DetcloudError(f"another process of the trial has exited: {error}") from None


def _receive(connection: Connection[Any, Any], rank: int) -> Any:
    """Wait for a value, and return the value.

    Raises DetcloudError if the process of `rank`, at the other end, has exited, and the errors of
    unpickling.
    """
    try:
        return pickle.loads(connection.recv_bytes())
    except (EOFError, OSError):
        raise DetcloudError(f"rank {rank} of the trial has exited") from None
