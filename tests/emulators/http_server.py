"""HTTP servers of emulators, in threads of the tests' own process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TENDING_SECONDS = 0.1


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
