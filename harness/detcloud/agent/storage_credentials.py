"""The agent's server of keys and tokens, which clouds' clients in trials fetch over loopback.

Each allocation has a URL of its own on the loopback interface and a token for the URL. A trial
therefore gets no other allocation's keys. URLs and tokens stay valid after a restart of the agent,
because running trials have them in their environment.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.google_metadata import (
    FLAVOR,
    MetadataRequest,
    answer_metadata,
    metadata_variables,
    parse_metadata_path,
)
from detcloud.agent.issued_keys import StorageKeys, StorageToken
from detcloud.shared import storage_variables
from detcloud.shared.files import read_json_object, write_atomically
from detcloud.shared.http import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HOST = "127.0.0.1"
# Unassigned ports below 1024, which trials cannot bind. A trial that bound the agent's port during
# a restart would receive the tokens of all other trials.
PORTS = range(334, 344)
RETRY_SECONDS = 2.0
REQUEST_SECONDS_MAX = 20.0
# The agent renews keys this number of seconds before the end. Clients renew copies five minutes
# before the end.
RENEW_SECONDS = 15 * 60


def data_holder(allocation: str) -> str:
    """Return the holder's name for the keys of an allocation's code.

    The holder's name for the keys of the checkpoint storage is the allocation's id.
    """
    return f"{allocation}/data"


class CredentialServer:
    """An HTTP server on the loopback interface that serves keys and tokens to holders.

    A holder is an allocation's id or a name of `data_holder`. Keys are cached until shortly before
    they expire. The file credentials.json in the work directory records the port and the secret of
    the tokens.
    """

    def __init__(
        self,
        work: Path,
        fetch: Callable[[str], StorageKeys | StorageToken],
        log_line: Callable[[str], None],
        ports: Sequence[int] = PORTS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Start to serve in a thread. Write the record file.

        If the record names a port, wait without limit until the port is free, and log the waiting
        once. Otherwise choose a free port, preferably of `ports`. `fetch` requests a holder's keys
        from the cluster. `log_line` writes to the agent's log. `retry_seconds` is the pause between
        two attempts to get the port. Raise OSError if the record cannot be written.
        """
        self._fetch = fetch
        self._lock = threading.Lock()
        self._cached_keys: dict[str, StorageKeys | StorageToken] = {}
        self._record = work / "credentials.json"
        record = read_json_object(self._record) or {"port": 0, "secret": secrets.token_hex(32)}
        self._secret = bytes.fromhex(record["secret"])
        handler, port = _handler(self), record["port"]
        self._server = (
            _server_at(port, handler, log_line, retry_seconds)
            if port
            else _new_server(handler, ports)
        )
        write_atomically(self._record, {**record, "port": self._server.server_port})
        threading.Thread(target=self._server.serve_forever, name="credentials", daemon=True).start()

    def close(self) -> None:
        """Stop serving, and free the port."""
        self._server.shutdown()
        self._server.server_close()

    def variables(
        self,
        allocation: str,
        *,
        storage: bool = True,
        data: bool = False,
        google: bool = False,
        google_data: bool = False,
    ) -> dict[str, str]:
        """Return the environment variables that direct a trial's clients to this server.

        With `storage`, detcloud's own variables direct the checkpoint store to the keys of the
        checkpoints. Clouds' clients in the trial's code get the variables of the first case:

        - `google_data`: Google's variables for the Google tokens of the code.
        - `google` without `data`: only NO_GCE_CHECK, so that Google's clients look for no metadata
          service. Google tokens of the checkpoints are never passed to the code.
        - otherwise, also without any flag: AWS's variables for the keys of the code with `data`,
          or of the checkpoints without `data`. AWS's clients cannot use the machine's role.

        Args:
            storage: whether the cluster issues keys or tokens for the checkpoints.
            data: whether the cluster issues AWS keys for the code.
            google: whether the checkpoints are stored at Google.
            google_data: whether the cluster issues Google tokens for the code.
        """
        found = {}
        if storage:
            found = {
                storage_variables.CREDENTIALS_URI: self._uri(allocation),
                storage_variables.CREDENTIALS_TOKEN: self.token(allocation),
            }
        if google_data:
            holder = data_holder(allocation)
            address = f"{HOST}:{self._server.server_port}"
            return {**found, **metadata_variables(address, holder, self.token(holder))}
        if google and not data:
            return {**found, "NO_GCE_CHECK": "true"}
        holder = data_holder(allocation) if data else allocation
        return {
            **found,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": self._uri(holder),
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": self.token(holder),
            # The trial must not use the machine's role, and cannot reach the metadata service.
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def _uri(self, holder: str) -> str:
        return f"http://{HOST}:{self._server.server_port}/{holder}"

    def token(self, holder: str) -> str:
        """Return the token that a trial must present for a holder's keys, the same on each call."""
        return hmac.digest(self._secret, holder.encode(), "sha256").hex()

    def valid_keys(self, holder: str) -> StorageKeys | StorageToken:
        """Return a holder's keys, cached if they are valid for at least RENEW_SECONDS.

        Otherwise fetch and cache new keys. If that fails, return the cached keys while they are
        valid. Raise OSError or ApiError if no valid keys are available.
        """
        with self._lock:
            cached = self._cached_keys.get(holder)
        now = time.time()
        if cached is not None and cached.expires_ms / 1000 - now > RENEW_SECONDS:
            return cached
        try:
            keys = self._fetch(holder)
        except (OSError, ApiError):
            # The cached keys may still be valid for some minutes.
            if cached is not None and cached.expires_ms / 1000 > now:
                return cached
            raise
        with self._lock:
            live = {k: v for k, v in self._cached_keys.items() if v.expires_ms / 1000 > now}
            self._cached_keys = {**live, holder: keys}
        return keys

    def valid_token(self, holder: str) -> StorageToken:
        """Return a holder's Google token, cached or fetched from the cluster.

        A cached token is returned if it is valid for at least RENEW_SECONDS. Otherwise fetch and
        cache a new token. If that fails, return the cached token while it is valid. Raise OSError
        if the cluster issues AWS keys to the holder. Raise OSError or ApiError if no valid token is
        available.
        """
        found = self.valid_keys(holder)
        if not isinstance(found, StorageToken):
            raise OSError("the cluster issues keys of another cloud")
        return found


class _Server(ThreadingHTTPServer):
    """An HTTP server whose threads end with the process."""

    daemon_threads = True
    allow_reuse_address = True


def _new_server(handler: type[BaseHTTPRequestHandler], ports: Sequence[int]) -> _Server:
    """Bind a server to the first free port of `ports`, or to any port if none is available."""
    for port in ports:
        with contextlib.suppress(OSError):
            return _Server((HOST, port), handler)
    return _Server((HOST, 0), handler)


def _server_at(
    port: int,
    handler: type[BaseHTTPRequestHandler],
    log_line: Callable[[str], None],
    retry_seconds: float,
) -> _Server:
    """Bind a server to the port that an earlier agent's trials use. Wait until the port is free.

    Log the first failure.
    """
    has_logged = False
    while True:
        try:
            return _Server((HOST, port), handler)
        except OSError as error:
            if not has_logged:
                log_line(
                    f"port {port} of {HOST}, which serves trials their storage "
                    f"credentials, is not available, trying again: {error}; `ss -tanp` shows "
                    "which process uses it"
                )
            has_logged = True
        time.sleep(retry_seconds)


def _is_transient_refusal(error: OSError | ApiError) -> bool:
    """Whether a later attempt may get keys: after any OSError, or status 401, 409, 429 or 5xx."""
    # While an agent enrols again, the cluster knows no session of the agent.
    return not isinstance(error, ApiError) or error.status in (401, 409, 429) or error.status >= 500


def _handler(server: CredentialServer) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"keys": server})


class _Handler(BaseHTTPRequestHandler):
    """A request handler that verifies a request's token and answers with the holder's keys."""

    keys: CredentialServer
    timeout = REQUEST_SECONDS_MAX

    def do_GET(self) -> None:
        asked = parse_metadata_path(self.path)
        holder = asked.holder if asked else self.path.removeprefix("/")
        token = asked.token if asked else self.headers.get("Authorization", "")
        try:
            if not hmac.compare_digest(token.encode(), self.keys.token(holder).encode()):
                self._refuse(403, "the token does not belong to this allocation", asked)
            elif asked is None:
                self._answer(200, self.keys.valid_keys(holder).to_answer())
            else:
                has_flavor = self.headers.get("Metadata-Flavor") == FLAVOR["Metadata-Flavor"]
                fetch = partial(self.keys.valid_token, holder)
                self._send(*answer_metadata(asked, has_flavor, fetch))
        except (OSError, ApiError) as error:
            self._refuse(503 if _is_transient_refusal(error) else 403, str(error), asked)

    def log_message(self, *_: object) -> None:
        """Do nothing, since nobody reads a request log, and the paths contain tokens."""

    def _refuse(self, status: int, text: str, asked: MetadataRequest | None) -> None:
        """Send a refusal: JSON for AWS's service, plain text for a request to Google's service."""
        if asked is None:
            self._answer(status, {"message": text})
        else:
            self._send(status, "text/plain", f"{text}\n")

    def _answer(self, status: int, content: Mapping[str, str | int]) -> None:
        self._send(status, "application/json", json.dumps(content))

    def _send(self, status: int, kind: str, content: str) -> None:
        body = content.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in FLAVOR.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
