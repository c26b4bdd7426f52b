"""A proxy of TCP connections that cuts a connection at a chosen request."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_CHUNK = 1 << 20
_ANSWER_SECONDS_MAX = 1.0


@dataclass
class CuttingProxy:
    """A proxy on `port` of the server on `behind`, both on this machine.

    A request is a chunk of bytes that a client sends. The connection of the `cut_at`-th request,
    counted from 1, is cut: before the server gets the request, or after the server's answer, which
    the client does not get (`is_after`). 0 cuts no connection.
    """

    port: int
    behind: int
    cut_at: int = 0
    is_after: bool = False
    requests: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, client: socket.socket) -> None:
        """Pass the bytes of a connection on, until an end closes the connection or a cut."""
        with client, socket.create_connection(("127.0.0.1", self.behind)) as server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            is_cut = threading.Event()
            answers = threading.Thread(target=self._pass_answers, args=(server, client, is_cut))
            answers.start()
            with suppress(OSError):
                while chunk := client.recv(_CHUNK):
                    with self._lock:
                        self.requests += 1
                        if self.requests == self.cut_at:
                            is_cut.set()
                    if is_cut.is_set() and not self.is_after:
                        break
                    server.sendall(chunk)
                    if is_cut.is_set():
                        # A part of a message has no answer.
                        answers.join(_ANSWER_SECONDS_MAX)
                        break
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            answers.join()

    def _pass_answers(
        self, server: socket.socket, client: socket.socket, is_cut: threading.Event
    ) -> None:
        with suppress(OSError):
            while chunk := server.recv(_CHUNK):
                if is_cut.is_set():
                    return
                client.sendall(chunk)
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting_proxy(behind: int) -> Iterator[CuttingProxy]:
    """Run a proxy of the server on the port `behind` until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = CuttingProxy(listener.getsockname()[1], behind)
    serving: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                serving.append(threading.Thread(target=proxy.serve, args=(client,)))
                serving[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield proxy
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in serving:
            thread.join()
