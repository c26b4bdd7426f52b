"""A server of keys for trials' storage, from which the clients of clouds in the trials fetch them.

Each allocation has an address of its own on the loopback interface and a token for it, so that a
trial gets the keys of its own place and of no other. Address and tokens are the same after the
agent was restarted, because the trials that go on have them in their environment.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
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
from detcloud.shared import storage_variables
from detcloud.shared.files import read_json_object, write_atomically
from detcloud.shared.http import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from detcloud.shared.http import Transport

HOST = "127.0.0.1"
# Ports that nobody has been assigned. Trials may take none below 1024: one that took the agent's
# while that is away would be shown the tokens of all others.
PORTS = range(334, 344)
RETRY_SECONDS = 2.0
REQUEST_SECONDS_MAX = 20.0
# Keys are renewed so long before they end; clients renew theirs five minutes before.
RENEW_SECONDS = 15 * 60


@dataclass(frozen=True)
class StorageKeys:
    """The keys that the cluster issued for an allocation, valid until `expires_ms` (epoch)."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_ms: int

    def to_answer(self) -> dict[str, str | int]:
        """The answer in the form that AWS's clients read."""
        ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.expires_ms / 1000))
        return {
            "AccessKeyId": self.key_id,
            "SecretAccessKey": self.secret,
            "Token": self.session_token,
            "Expiration": ends,
        }


@dataclass(frozen=True)
class StorageToken:
    """The token that the cluster issued for an allocation, valid until `expires_ms` (epoch).
    `account`: the service account whose token it is, "" where the cluster does not say.
    """

    access_token: str = field(repr=False)
    expires_ms: int
    account: str = ""

    def to_answer(self) -> dict[str, str | int]:
        """The answer in the form in which Google tells tokens."""
        seconds = max(0, int(self.expires_ms / 1000 - time.time()))
        return {
            "access_token": self.access_token,
            "expires_in": seconds,
            "token_type": "Bearer",
        }


def fetch_keys(client: Transport, agent: str, holder: str) -> StorageKeys | StorageToken:
    """Request keys for a trial's storage or, for a holder of `data_holder`, for the trial's code.

    Raises ApiError, OSError.
    """
    allocation, _, kind = holder.partition("/")
    path = f"/api/v1/agents/{agent}/{kind or 'storage'}-credentials"
    answer = client.request("POST", path, {"allocation": allocation}, retry=False)
    if "access_token" in answer:
        account = answer.get("account", "")
        return StorageToken(answer["access_token"], answer["expires_ms"], account)
    return StorageKeys(**{name: answer[name] for name in StorageKeys.__dataclass_fields__})


def data_holder(allocation: str) -> str:
    """The name under which the keys of an allocation's code are held, apart from its storage's."""
    return f"{allocation}/data"


class CredentialServer:
    """An HTTP server of keys that `fetch` gets from the cluster; its port is recorded in `work`."""

    def __init__(
        self,
        work: Path,
        fetch: Callable[[str], StorageKeys | StorageToken],
        log_line: Callable[[str], None],
    ) -> None:
        """Start to serve; waits, and logs it, while an earlier agent's port is in use."""
        self._fetch = fetch
        self._lock = threading.Lock()
        self._cached_keys: dict[str, StorageKeys | StorageToken] = {}
        self._record = work / "credentials.json"
        record = read_json_object(self._record) or {"port": 0, "secret": secrets.token_hex(32)}
        self._secret = bytes.fromhex(record["secret"])
        handler, port = _handler(self), record["port"]
        self._server = _server_at(port, handler, log_line) if port else _new_server(handler)
        write_atomically(self._record, {**record, "port": self._server.server_port})
        threading.Thread(target=self._server.serve_forever, name="credentials", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
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
        """The environment variables by which the trial's store of checkpoints finds this server,
        and those by which clouds' clients do in code that has no keys of its own.

        `storage` and `data`: whether the cluster issues keys for checkpoints, and for the code;
        `google` and `google_data`: whether these are Google's tokens. Code for which it issues none
        gets those of the checkpoints, unless these are Google's.
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
            # The machine's own role is not the trial's, and its address is closed to it.
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def _uri(self, holder: str) -> str:
        return f"http://{HOST}:{self._server.server_port}/{holder}"

    def token(self, holder: str) -> str:
        """The token that the trial must present for the keys of a holder."""
        return hmac.digest(self._secret, holder.encode(), "sha256").hex()

    def valid_keys(self, holder: str) -> StorageKeys | StorageToken:
        """Keys that are valid for a while; raises OSError or ApiError without any."""
        with self._lock:
            cached = self._cached_keys.get(holder)
        now = time.time()
        if cached is not None and cached.expires_ms / 1000 - now > RENEW_SECONDS:
            return cached
        try:
            keys = self._fetch(holder)
        except (OSError, ApiError):
            # The cached ones may be valid for some minutes yet.
            if cached is not None and cached.expires_ms / 1000 > now:
                return cached
            raise
        with self._lock:
            live = {k: v for k, v in self._cached_keys.items() if v.expires_ms / 1000 > now}
            self._cached_keys = {**live, holder: keys}
        return keys

    def valid_token(self, holder: str) -> StorageToken:
        """A token that is valid for a while; raises OSError or ApiError without any."""
        found = self.valid_keys(holder)
        if not isinstance(found, StorageToken):
            raise OSError("the cluster issues keys of another cloud")
        return found


class _Server(ThreadingHTTPServer):
    """An HTTP server whose threads end with the process."""

    daemon_threads = True
    allow_reuse_address = True


def _new_server(handler: type[BaseHTTPRequestHandler]) -> _Server:
    """A server at a port that trials may not take, or at any if this agent may not either."""
    for port in PORTS:
        with contextlib.suppress(OSError):
            return _Server((HOST, port), handler)
    return _Server((HOST, 0), handler)


def _server_at(
    port: int, handler: type[BaseHTTPRequestHandler], log_line: Callable[[str], None]
) -> _Server:
    """A server at the port which trials of an earlier agent know; waits until it is free."""
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
        time.sleep(RETRY_SECONDS)


def _is_transient_refusal(error: OSError | ApiError) -> bool:
    """Whether a later attempt may get keys: the cluster did not refuse them for good."""
    # An agent that enrols again has no session for a moment.
    return not isinstance(error, ApiError) or error.status in (401, 409, 429) or error.status >= 500


def _handler(server: CredentialServer) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"keys": server})


class _Handler(BaseHTTPRequestHandler):
    """Answers requests from what `keys` fetches."""

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
        """Write no log: nobody reads it, and it would name addresses."""

    def _refuse(self, status: int, text: str, asked: MetadataRequest | None) -> None:
        """Answer a refusal in the form of the service that was asked."""
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
