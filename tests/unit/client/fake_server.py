"""An HTTP server for a fake cluster; it loses `losses_left` answers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.fake_refusal import Refusal


@contextmanager
def serve_cluster(cluster: FakeCluster) -> Iterator[FakeCluster]:
    """Serve `cluster` on a free port until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _request_handler(cluster))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    cluster.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _request_handler(cluster: FakeCluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Send each answer in one packet: a second packet would wait for an acknowledgement.
        wbufsize = -1

        def do_GET(self) -> None:
            self._serve()

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

        def log_message(self, format: str, *values: object) -> None:
            return

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                status, answer = 200, cluster.answer(self.command, self.path, headers, body)
            except Refusal as refusal:
                status, answer = refusal.status, refusal.body
            if self.command != "GET" and cluster.losses_left:
                # The mutation is done, but the client gets no answer.
                cluster.losses_left -= 1
                self.close_connection = True
                return
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

    return Handler
