"""HTTP servers of emulators, in threads of the test process."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TENDING_SECONDS = 0.1
JSON = {"Content-Type": "application/json"}
# Headers that belong to a connection, not to the answer.
_OF_CONNECTIONS = ("content-length", "transfer-encoding", "connection")


class AnsweringHandler(BaseHTTPRequestHandler):
    """A connection handler that sends each answer in a single write and logs nothing.

    A second write would wait for the confirmation of the first.
    """

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def read_body(self) -> bytes:
        """The whole body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] = JSON) -> None:
        """Answer the request, with JSON if nothing else is said."""
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _OF_CONNECTIONS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serve_requests(
    handler: type[BaseHTTPRequestHandler],
    *,
    joins_requests: bool = False,
    tend: Callable[[], object] | None = None,
) -> Iterator[str]:
    """Serve on a free port until the block ends; the value is the address, `host:port`.

    `joins_requests`: the end waits for the requests that are being answered. `tend` is called ten
    times a second.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = not joins_requests
    stopped = threading.Event()

    def tend_regularly(tend: Callable[[], object]) -> None:
        while not stopped.wait(TENDING_SECONDS):
            tend()

    threads = [threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)]
    if tend is not None:
        threads.append(threading.Thread(target=tend_regularly, args=(tend,), daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join()
