"""The calls of a container engine's HTTP API that the agent needs, on the engine's unix socket.

Each call has a connection of its own, so they may come from any thread. No version is named in the
paths: an engine answers those in its newest one, and refuses old ones.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ANSWER_SECONDS_MAX = 60.0
# While an engine checks or unpacks a large layer it says nothing.
PULL_SILENCE_SECONDS_MAX = 300.0
ANSWER_BYTES_MAX = 16 << 20
OUTPUT_BYTES_MAX = 8 * 1024
MESSAGE_CHARACTERS_MAX = 2000
DEFAULT_SOCKET = "/var/run/docker.sock"


class EngineAway(Exception):
    """The engine does not answer: it is stopped, restarting or stuck. It may well come back."""


class EngineRefused(Exception):
    """The engine answered with an error: its status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Engine:
    """One engine. Any method may raise EngineAway, and EngineRefused for what it does not name."""

    def __init__(self, path: str, *, seconds_max: float = ANSWER_SECONDS_MAX) -> None:
        self.path = path
        self._seconds_max = seconds_max

    def version(self) -> str:
        """The engine's own version."""
        return str(self._json("GET", "/version").get("Version", "?"))

    def image(self, name: str) -> dict[str, Any] | None:
        """What is known of an image that is here, None for one that is not."""
        return self._found(f"/images/{quote(name, safe='/:@')}/json")

    def pull(
        self,
        name: str,
        login: Mapping[str, str] | None,
        on_event: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """Fetch an image; `on_event` hears of the progress, and stops it by raising anything.

        `login` has username, password and serveraddress. Raises EngineRefused for what the registry
        says, too.
        """
        headers = {}
        if login is not None:
            encoded = base64.urlsafe_b64encode(json.dumps(dict(login)).encode())
            headers["X-Registry-Auth"] = encoded.decode()
        repository, tag = split_reference(name)
        path = "/images/create?" + urlencode({"fromImage": repository, "tag": tag})
        with closing(self._connected(PULL_SILENCE_SECONDS_MAX)) as connection:
            answer = _answer(connection, "POST", path, None, headers)
            while line := _line(answer):
                event = _object(line)
                if "error" in event:
                    raise EngineRefused(500, str(event["error"])[:MESSAGE_CHARACTERS_MAX])
                on_event(event)

    def remove_image(self, name: str) -> bool:
        """Whether it is gone: the engine keeps one that a container has."""
        try:
            self._json("DELETE", f"/images/{quote(name, safe=':')}")
        except EngineRefused as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
        return True

    def folder(self) -> str:
        """Where the engine keeps images, on its machine."""
        return str(self._json("GET", "/info")["DockerRootDir"])

    def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Make a container of that name. EngineRefused 409: the name is taken."""
        self._json("POST", "/containers/create?" + urlencode({"name": name}), body)

    def start(self, name: str) -> None:
        """Start a container; harmless where it runs already."""
        self._json("POST", f"/containers/{name}/start")

    def inspect(self, name: str) -> dict[str, Any] | None:
        """What is known of a container, None without one."""
        return self._found(f"/containers/{name}/json")

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a container's first process; harmless where it runs no more."""
        try:
            self._json("POST", f"/containers/{name}/kill?signal={number}")
        except EngineRefused as error:
            if error.status not in (404, 409):
                raise

    def remove(self, name: str) -> None:
        """Kill a container and delete it with its volumes; harmless where there is none."""
        try:
            self._json("DELETE", f"/containers/{name}?force=1&v=1")
        except EngineRefused as error:
            # 409: it is being removed already.
            if error.status not in (404, 409):
                raise

    def containers(self, label: str) -> list[dict[str, Any]]:
        """Those with the label NAME=VALUE, in any state."""
        query = urlencode({"all": 1, "filters": json.dumps({"label": [label]})})
        found: list[dict[str, Any]] = self._json("GET", f"/containers/json?{query}")
        return found

    def output(self, name: str) -> str:
        """The end of what a container printed to the engine."""
        path = f"/containers/{name}/logs?stdout=1&stderr=1&tail=50"
        with closing(self._connected(self._seconds_max)) as connection:
            content = _read(_answer(connection, "GET", path, None, {}))
        return _without_frames(content)[-OUTPUT_BYTES_MAX:].decode(errors="replace")

    def _found(self, path: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._json("GET", path)
        except EngineRefused as error:
            if error.status == 404:
                return None
            raise
        return found

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        with closing(self._connected(self._seconds_max)) as connection:
            headers = {"Content-Type": "application/json"} if content else {}
            answer = _read(_answer(connection, method, path, content, headers))
        try:
            return json.loads(answer) if answer else {}
        except ValueError as error:
            raise EngineAway(f"{self.path} answered with no JSON: {answer[:80]!r}") from error

    def _connected(self, seconds_max: float) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=seconds_max)
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.settimeout(seconds_max)
        try:
            channel.connect(self.path)
        except OSError as error:
            channel.close()
            reason = error.strerror or str(error)
            raise EngineAway(f"the container engine at {self.path}: {reason}") from error
        connection.sock = channel
        return connection


def socket_path(environment: Mapping[str, str]) -> str:
    """Where the engine listens: DOCKER_HOST where that names a unix socket, else the usual place.

    Raises ValueError for an engine elsewhere: its containers would not see our directories.
    """
    host = environment.get("DOCKER_HOST") or f"unix://{DEFAULT_SOCKET}"
    if not host.startswith("unix:///"):
        raise ValueError(
            f"DOCKER_HOST is {host!r}; the engine must be on this machine: unix:///PATH"
        )
    return host.removeprefix("unix://")


def split_reference(name: str) -> tuple[str, str]:
    """An image's repository, and its digest or tag, which is `latest` if it names none."""
    repository, at, digest = name.partition("@")
    if at:
        return _split_tag(repository)[0], digest
    return _split_tag(name)


def _split_tag(name: str) -> tuple[str, str]:
    # A colon before the last slash belongs to the registry's port.
    before, colon, tag = name.rpartition(":")
    return (before, tag) if colon and "/" not in tag else (name, "latest")


def _answer(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    content: bytes | None,
    headers: Mapping[str, str],
) -> http.client.HTTPResponse:
    try:
        connection.request(method, path, content, dict(headers))
        answer = connection.getresponse()
        if answer.status < 400:
            return answer
        said = answer.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise EngineAway(f"the container engine did not answer: {error!r}") from error
    message = str(_object(said).get("message") or said.decode(errors="replace"))
    message = message.strip()[:MESSAGE_CHARACTERS_MAX]
    if answer.status == 503:
        raise EngineAway(f"the container engine is not ready: {message}")
    raise EngineRefused(answer.status, message)


def _read(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise EngineAway(f"the container engine broke off its answer: {error!r}") from error


def _line(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.readline(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise EngineAway(f"the container engine broke off a pull: {error!r}") from error


def _object(content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _without_frames(content: bytes) -> bytes:
    """Output without the headers of 8 bytes that tell stdout from stderr."""
    pieces, place = [], 0
    while place + 8 <= len(content):
        size = int.from_bytes(content[place + 4 : place + 8], "big")
        pieces.append(content[place + 8 : place + 8 + size])
        place += 8 + size
    return b"".join(pieces)
