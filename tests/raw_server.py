"""A server that answers with arbitrary bytes, for tests of malformed and cut answers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.patience import ANSWER_SECONDS_MAX


@contextmanager
def serve_raw(*answers: bytes) -> Iterator[str]:
    """Yield the URL of a server that sends an answer per connection, then closes the connection.

    The first connection gets the first answer. After the last answer, connections are refused.
    """

    def answer_in_turn() -> None:
        for answer in answers:
            with suppress(OSError):
                _answer_connection(listener, answer)
        listener.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_in_turn, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        with suppress(OSError):
            # Unlike `close`, this wakes the waiting thread.
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _answer_connection(listener: socket.socket, answer: bytes) -> None:
    connection = listener.accept()[0]
    with connection:
        connection.settimeout(ANSWER_SECONDS_MAX)
        connection.recv(1 << 16)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        # A close with unread bytes would reset the connection before the client reads the answer.
        while connection.recv(1 << 16):
            pass
