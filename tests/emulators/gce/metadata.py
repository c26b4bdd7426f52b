"""The metadata server of a machine of Compute Engine."""

import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.emulators.google_keys import ISSUER, GoogleKeys

FLAVOR = {"Metadata-Flavor": "Google"}
PREFIX = "/computeMetadata/v1/"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TOKEN_SECONDS = 3600
HOLD_SECONDS_MAX = 300.0


@dataclass
class MachineMetadata:
    """The metadata of a machine.

    `account`: the e-mail of the service account, or "" without an account. `subject`: the account's
    number. `attributes`: instance attributes, for example the startup script. `access_tokens`:
    issued tokens. `token_answer`: the answer to requests for a token, or None for an answer with a
    new token. Changes answer waiting requests.
    """

    name: str
    keys: GoogleKeys
    project: str = "team-project"
    project_number: int = 123456789012
    zone: str = "us-central1-a"
    machine_type: str = "n1-standard-4"
    numeric_id: int = field(default_factory=lambda: secrets.randbits(62))
    account: str = "instances@team-project.iam.gserviceaccount.com"
    subject: str = "100483287612623142116"
    address: str = "10.128.0.2"
    is_spot: bool = True
    attributes: dict[str, str] = field(default_factory=dict)
    access_tokens: list[str] = field(default_factory=list)
    token_answer: str | None = None
    is_down: bool = False
    _preempted: bool = False
    _maintenance_event: str = "NONE"
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def set_preempted(self) -> None:
        """Announce that the machine is taken away."""
        with self._changed:
            self._preempted = True
            self._changed.notify_all()

    def set_maintenance_event(self, event: str) -> None:
        """Announce a maintenance event of the host, or NONE."""
        with self._changed:
            self._maintenance_event = event
            self._changed.notify_all()

    def set_attribute(self, name: str, value: str) -> None:
        """Give the machine an attribute."""
        with self._changed:
            self.attributes[name] = value
            self._changed.notify_all()

    def set_down(self, is_down: bool) -> None:
        """Refuse all answers from now on, or no more."""
        with self._changed:
            self.is_down = is_down
            self._changed.notify_all()

    def answer(self, path: str, query: Mapping[str, str]) -> str | None:
        """Return the value at `path`, for example instance/name, or None for an unknown path."""
        account = f"instance/service-accounts/{self.account}/"
        path = re.sub("^instance/service-accounts/default(?=/|$)", account.rstrip("/"), path)
        if self.account and path == f"{account}identity":
            return self._identity_token(query)
        if self.account and path == f"{account}token":
            return self._access_token() if self.token_answer is None else self.token_answer
        if self.account and path == account.rstrip("/"):
            fields = {"aliases": ["default"], "email": self.account, "scopes": [SCOPE]}
            return json.dumps(fields) if query.get("recursive") == "true" else "email\n"
        if self.account and path == f"{account}email":
            return self.account
        if path.startswith("instance/attributes/"):
            return self.attributes.get(path.removeprefix("instance/attributes/"))
        return self._values().get(path)

    def wait(self, path: str, query: Mapping[str, str]) -> str | None:
        """Return the value at `path` once the value differs from `last_etag` of the query, or after
        `timeout_sec`.
        """
        hold = min(float(query.get("timeout_sec", HOLD_SECONDS_MAX)), HOLD_SECONDS_MAX)
        with self._changed:
            last = query.get("last_etag") or etag_of(self.answer(path, query))
            self._changed.wait_for(
                lambda: self.is_down or etag_of(self.answer(path, query)) != last, hold
            )
            return self.answer(path, query)

    def claims(self, audience: str, *, full: bool = True) -> dict[str, Any]:
        """The claims of an identity token that is made now."""
        now = int(time.time())
        claims: dict[str, Any] = {
            "aud": audience,
            "azp": self.subject,
            "email": self.account,
            "email_verified": True,
            "exp": now + TOKEN_SECONDS,
            "iat": now,
            "iss": ISSUER,
            "sub": self.subject,
        }
        if full:
            machine = {
                "instance_creation_timestamp": now - 60,
                "instance_id": str(self.numeric_id),
                "instance_name": self.name,
                "project_id": self.project,
                "project_number": self.project_number,
                "zone": self.zone,
            }
            claims["google"] = {"compute_engine": machine}
        return claims

    def _identity_token(self, query: Mapping[str, str]) -> str | None:
        if not query.get("audience"):
            return None
        is_full = query.get("format") == "full"
        return self.keys.sign(self.claims(query["audience"], full=is_full))

    def _access_token(self) -> str:
        token = f"ya29.{secrets.token_hex(16)}"
        self.access_tokens.append(token)
        fields = {"access_token": token, "expires_in": TOKEN_SECONDS, "token_type": "Bearer"}
        return json.dumps(fields)

    def _values(self) -> dict[str, str]:
        region = self.zone.rpartition("-")[0]
        place = f"projects/{self.project_number}"
        return {
            "project/project-id": self.project,
            "project/numeric-project-id": str(self.project_number),
            "instance/name": self.name,
            "instance/id": str(self.numeric_id),
            "instance/zone": f"{place}/zones/{self.zone}",
            "instance/region": f"{place}/regions/{region}",
            "instance/machine-type": f"{place}/machineTypes/{self.machine_type}",
            "instance/network-interfaces/0/ip": self.address,
            "instance/preempted": "TRUE" if self._preempted else "FALSE",
            "instance/maintenance-event": self._maintenance_event,
            "instance/scheduling/preemptible": "TRUE" if self.is_spot else "FALSE",
            "instance/scheduling/on-host-maintenance": "TERMINATE" if self.is_spot else "MIGRATE",
            "instance/scheduling/automatic-restart": "FALSE" if self.is_spot else "TRUE",
        }


def etag_of(text: str | None) -> str:
    """The tag of a version."""
    return hashlib.sha256((text or "").encode()).hexdigest()[:16]


@contextmanager
def metadata_server(machine: MachineMetadata, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve a machine's metadata; the HOST:PORT that GCE_METADATA_HOST is to name."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            # Forwarded requests are not the machine's own.
            is_own = self.headers.get("Metadata-Flavor") == "Google"
            if not is_own or "X-Forwarded-For" in self.headers:
                self._answer(403, "")
                return
            path = parts.path.removeprefix(PREFIX).rstrip("/")
            waits = query.get("wait_for_change", "").lower() == "true"
            text = (machine.wait if waits else machine.answer)(path, query)
            if machine.is_down:
                self._answer(503, "")
            elif parts.path in ("", "/"):
                self._answer(200, "computeMetadata/\n")
            elif text is None or not parts.path.startswith(PREFIX):
                self._answer(404, "")
            else:
                self._answer(200, text)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            kind = "application/json" if text.startswith("{") else "application/text"
            headers = {**FLAVOR, "Content-Type": kind, "ETag": etag_of(text)}
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Ignore callers that closed the connection."""

    with Server((host, 0), Handler) as server:
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"{host}:{server.server_port}"
        server.shutdown()
        # Who waits hears of the end.
        machine.set_down(True)
