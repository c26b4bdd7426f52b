"""A server that answers with arbitrary bytes, for tests of malformed and cut answers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser

from tests.patience import ANSWER_SECONDS_MAX


@dataclass
class RawServer:
    """A server at `url`. `requests` has the first bytes of each connection."""

    url: str
    requests: list[bytes] = field(default_factory=list)

    def headers(self) -> Message:
        """Return the headers of the only request."""
        (request,) = self.requests
        return BytesParser().parsebytes(request.partition(b"\r\n")[2], headersonly=True)


@contextmanager
def serve_raw(*answers: bytes) -> Iterator[RawServer]:
    """Serve connections in turn: send an answer after the request, then close the connection.

    The first connection gets the first answer. After the last answer, connections are refused.
    """

    def answer_connections() -> None:
        for answer in answers:
            with suppress(OSError):
                _answer_connection(listener, answer, server.requests)
        listener.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = RawServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=answer_connections, daemon=True)
        thread.start()
        yield server
        with suppress(OSError):
            # Unlike `close`, this wakes the waiting thread.
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def http_answer(content: bytes) -> bytes:
    """Return an HTTP answer of status 200 with the content."""
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    return head % len(content) + content


def _answer_connection(listener: socket.socket, answer: bytes, requests: list[bytes]) -> None:
    connection = listener.accept()[0]
    with connection:
        connection.settimeout(ANSWER_SECONDS_MAX)
        requests.append(connection.recv(1 << 16))
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        # A close with unread bytes would reset the connection before the client reads the answer.
        while connection.recv(1 << 16):
            pass
