"""Keys for a trial's storage, which the trial fetches from its agent as AWS's clients do.

Each allocation has an address of its own on the loopback interface and a token for it, so that a
trial gets the keys of its own place and of no other. Address and tokens are the same after the
agent was restarted, because the trials that go on have them in their environment.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.directory import read_object, write_atomically
from detcloud.http import ApiError, Transport

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
# Nobody has been assigned them, and trials may take none below 1024: who took the agent's while it
# is away would be shown the tokens of all others.
PORTS = range(334, 344)
RETRY_SECONDS = 2.0
REQUEST_SECONDS_MAX = 20.0
# Keys are asked for again so long before they end; clients do so five minutes before.
RENEW_SECONDS = 15 * 60


@dataclass(frozen=True)
class Keys:
    """What the cluster gave out for an allocation, good until `expires_ms` (epoch)."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_ms: int

    def answer(self) -> dict[str, str]:
        """As AWS's clients want to read it."""
        ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.expires_ms / 1000))
        return {
            "AccessKeyId": self.key_id,
            "SecretAccessKey": self.secret,
            "Token": self.session_token,
            "Expiration": ends,
        }


def fetched(url: str, token: str | None, path: str, allocation: str) -> Keys:
    """What the cluster gives out for the allocation. Raises ApiError, OSError."""
    client = Transport(url, token)
    try:
        answer = client.request("POST", path, {"allocation": allocation}, retry=False)
    finally:
        client.close()
    return Keys(**{name: answer[name] for name in Keys.__dataclass_fields__})


class CredentialServer:
    """Serves keys that `fetch` gets from the cluster; its port and secret lie in `work`."""

    def __init__(
        self, work: Path, fetch: Callable[[str], Keys], say: Callable[[str], None]
    ) -> None:
        """Waits, and tells of it, while somebody else has an earlier agent's port."""
        self._fetch = fetch
        self._lock = threading.Lock()
        self._kept: dict[str, Keys] = {}
        self._record = work / "credentials.json"
        known = read_object(self._record) or {"port": 0, "secret": secrets.token_hex(32)}
        self._secret = bytes.fromhex(known["secret"])
        handler, port = _handler(self), known["port"]
        self._server = _server_at(port, handler, say) if port else _new_server(handler)
        write_atomically(self._record, {**known, "port": self._server.server_port})
        threading.Thread(target=self._server.serve_forever, name="credentials", daemon=True).start()

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()

    def variables(self, allocation: str) -> dict[str, str]:
        """What AWS's clients in the trial need to know."""
        found = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": (
                f"http://{HOST}:{self._server.server_port}/{allocation}"
            ),
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": self.token(allocation),
            # The machine's own role is not the trial's, and its address is closed to it.
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        region = os.environ.get("AWS_DEFAULT_REGION")
        return {**found, **({"AWS_DEFAULT_REGION": region} if region else {})}

    def token(self, allocation: str) -> str:
        """What the allocation's trial proves itself with."""
        return hmac.digest(self._secret, allocation.encode(), "sha256").hex()

    def keys(self, allocation: str) -> Keys:
        """Keys that are good for a while; raises OSError or ApiError without any."""
        with self._lock:
            kept = self._kept.get(allocation)
        now = time.time()
        if kept is not None and kept.expires_ms / 1000 - now > RENEW_SECONDS:
            return kept
        try:
            fetched = self._fetch(allocation)
        except (OSError, ApiError):
            # What is there may be good for some minutes yet.
            if kept is not None and kept.expires_ms / 1000 > now:
                return kept
            raise
        with self._lock:
            live = {k: v for k, v in self._kept.items() if v.expires_ms / 1000 > now}
            self._kept = {**live, allocation: fetched}
        return fetched


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def _new_server(handler: type[BaseHTTPRequestHandler]) -> _Server:
    """Of a port that trials may not take, where this agent may; otherwise of any."""
    for port in PORTS:
        with contextlib.suppress(OSError):
            return _Server((HOST, port), handler)
    return _Server((HOST, 0), handler)


def _server_at(
    port: int, handler: type[BaseHTTPRequestHandler], say: Callable[[str], None]
) -> _Server:
    """Of the port that is known to the trials which an earlier agent began."""
    is_told = False
    while True:
        try:
            return _Server((HOST, port), handler)
        except OSError as error:
            if not is_told:
                say(
                    f"port {port} of {HOST}, where trials ask for the keys of their storage, "
                    f"cannot be had, trying again: {error}; `ss -tanp` tells who has it"
                )
            is_told = True
        time.sleep(RETRY_SECONDS)


def _handler(server: CredentialServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS_MAX

        def do_GET(self) -> None:
            allocation = self.path.removeprefix("/")
            told = self.headers.get("Authorization", "")
            if not hmac.compare_digest(told.encode(), server.token(allocation).encode()):
                self._answer(403, {"message": "this is not the token of this allocation"})
                return
            try:
                self._answer(200, server.keys(allocation).answer())
            except (OSError, ApiError) as error:
                self._answer(503, {"message": str(error)})

        def log_message(self, *_: object) -> None:
            """Nobody reads it, and it would name addresses."""

        def _answer(self, status: int, content: dict[str, str]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
