"""A client of a container engine's HTTP API on a unix socket, for the calls that the agent needs.

Each call uses a separate connection, so any thread may call. Each call names the API version of
this client, or the engine's newest version if that is older. If the engine was replaced by another
version meanwhile, the call is repeated once with a new agreed version.
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
    from collections.abc import Callable, Mapping, Sequence

ANSWER_SECONDS_MAX = 60.0
# An engine sends nothing while it verifies or unpacks a large layer.
PULL_SILENCE_SECONDS_MAX = 300.0
ANSWER_BYTES_MAX = 16 << 20
OUTPUT_BYTES_MAX = 8 * 1024
HEAD_BYTES_MAX = 64 * 1024
MESSAGE_CHARACTERS_MAX = 2000
# The version of Docker 25. The oldest usable version is the first one with device requests.
API_VERSION = (1, 44)
API_OLDEST = (1, 40)
DEFAULT_SOCKET = "/var/run/docker.sock"


class EngineUnavailable(Exception):
    """The engine is stopped, restarting or stuck, and gives no usable answer."""


class EngineError(Exception):
    """The engine answered with an error. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class EngineClient:
    """A client of the engine at the unix socket `path`.

    Any method may raise EngineUnavailable if the engine does not answer, and EngineError if the
    engine refuses the request. `seconds_max` limits the wait for an answer. The agreed API version
    is cached.
    """

    def __init__(self, path: str, *, seconds_max: float = ANSWER_SECONDS_MAX) -> None:
        self.path = path
        self._seconds_max = seconds_max
        self._api_version = ""

    def version(self) -> str:
        """Return the version of the engine's software, or "?" if the engine names none."""
        return str(self.read_version().get("Version", "?"))

    def api_version(self) -> str:
        """Return the API version that calls name, for example 1.44.

        The first call agrees the version with the engine.
        """
        if not self._api_version:
            self._api_version = agree_version(self.read_version())
        return self._api_version

    def cdi_devices(self) -> frozenset[str]:
        """Return the names of the Container Device Interface devices that the engine has found.

        An example is nvidia.com/gpu=0. Engines before 28.2 list no devices.
        """
        found = self.information().get("DiscoveredDevices") or ()
        return frozenset(str(item.get("ID")) for item in found if item.get("Source") == "cdi")

    def information(self) -> dict[str, Any]:
        """Return the engine's description of itself and of the machine."""
        found: dict[str, Any] = self._request_json("GET", "/info")
        return found

    def find_image(self, name: str) -> dict[str, Any] | None:
        """Return the engine's description of an image, or None if the machine lacks the image."""
        return self._get_or_none(f"/images/{quote(name, safe='/:@')}/json")

    def pull_image(
        self,
        name: str,
        login: Mapping[str, str] | None,
        on_event: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """Pull an image from a registry, and wait for the end of the pull.

        Raise EngineError also if the registry refuses. The status is 500 for an error during the
        pull.

        Args:
            name: the image's name. Without tag or digest, the tag is `latest`.
            login: the registry login as an AuthConfig of the engine's API, or None.
            on_event: called with each progress event. An exception stops the pull.
        """
        headers = {}
        if login is not None:
            encoded = base64.urlsafe_b64encode(json.dumps(dict(login)).encode())
            headers["X-Registry-Auth"] = encoded.decode()
        repository, tag = split_reference(name)
        path = "/images/create?" + urlencode({"fromImage": repository, "tag": tag})
        with closing(self._connect(PULL_SILENCE_SECONDS_MAX)) as connection:
            answer = self._send(connection, "POST", path, None, headers)
            while line := _read_line(answer):
                event = _parse_object(line)
                if "error" in event:
                    raise EngineError(500, str(event["error"])[:MESSAGE_CHARACTERS_MAX])
                on_event(event)

    def remove_image(self, name: str) -> bool:
        """Remove an image, and return whether the machine no longer has it.

        Return False if the engine keeps the image, for example for a container.
        """
        try:
            self._request_json("DELETE", f"/images/{quote(name, safe=':')}")
        except EngineError as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
        return True

    def root_folder(self) -> str:
        """Return the folder in which the engine stores images."""
        return str(self.information()["DockerRootDir"])

    def create_container(self, name: str, body: Mapping[str, Any]) -> None:
        """Create a container with this name. EngineError has status 409 if the name exists."""
        self._request_json("POST", "/containers/create?" + urlencode({"name": name}), body)

    def start_container(self, name: str) -> None:
        """Start a container. Do nothing if the container runs already. May raise EngineError."""
        self._request_json("POST", f"/containers/{name}/start")

    def inspect_container(self, name: str) -> dict[str, Any] | None:
        """Return the engine's description of a container. Return None if it does not exist."""
        return self._get_or_none(f"/containers/{name}/json")

    def signal_container(self, name: str, number: int) -> None:
        """Send a signal to a container's first process. Do nothing if the container has ended."""
        try:
            self._request_json("POST", f"/containers/{name}/kill?signal={number}")
        except EngineError as error:
            if error.status not in (404, 409):
                raise

    def create_exec(self, name: str, command: Sequence[str]) -> str:
        """Prepare a command with input and output in a container. Return the command's id."""
        body = {
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Cmd": list(command),
        }
        return str(self._request_json("POST", f"/containers/{name}/exec", body)["Id"])

    def start_exec(self, identity: str) -> tuple[socket.socket, bytes]:
        """Start a prepared command. Return its connection, and the first bytes of its output.

        Bytes that are sent over the connection are the input of the command. Its output arrives in
        frames, see `OutputFrames`. The caller closes the connection.
        """
        body = json.dumps({"Detach": False, "Tty": False}).encode()
        request = (
            f"POST /v{self.api_version()}/exec/{identity}/start HTTP/1.1\r\n"
            "Host: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        )
        channel = self._connect(self._seconds_max).sock
        try:
            channel.sendall(request.encode() + body)
            status, rest = _read_upgrade(channel)
        except OSError as error:
            channel.close()
            raise EngineUnavailable(f"the container engine did not respond: {error!r}") from error
        if status not in (101, 200):
            channel.close()
            message = str(_parse_object(rest).get("message") or rest.decode(errors="replace"))
            raise EngineError(status, message.strip()[:MESSAGE_CHARACTERS_MAX])
        channel.settimeout(None)
        return channel, rest

    def remove_container(self, name: str) -> None:
        """Kill and delete a container and the container's anonymous volumes.

        Do nothing if the container does not exist or is being removed.
        """
        try:
            self._request_json("DELETE", f"/containers/{name}?force=1&v=1")
        except EngineError as error:
            # 409: the container is being removed already.
            if error.status not in (404, 409):
                raise

    def list_containers(self, label: str) -> list[dict[str, Any]]:
        """Return the engine's entries of all containers with the label NAME=VALUE, in any state."""
        query = urlencode({"all": 1, "filters": json.dumps({"label": [label]})})
        entries: list[dict[str, Any]] = self._request_json("GET", f"/containers/json?{query}")
        return entries

    def container_output(self, name: str) -> str:
        """Return the last 50 lines that a container wrote to stdout and stderr, at most 8 KiB.

        Raise EngineError if the engine refuses, for example without such a container.
        """
        path = f"/containers/{name}/logs?stdout=1&stderr=1&tail=50"
        with closing(self._connect(self._seconds_max)) as connection:
            content = _read_answer(self._send(connection, "GET", path, None, {}))
        return _strip_frames(content)[-OUTPUT_BYTES_MAX:].decode(errors="replace")

    def _get_or_none(self, path: str) -> dict[str, Any] | None:
        try:
            description: dict[str, Any] = self._request_json("GET", path)
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        return description

    def _request_json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        with closing(self._connect(self._seconds_max)) as connection:
            headers = {"Content-Type": "application/json"} if content else {}
            answer = _read_answer(self._send(connection, method, path, content, headers))
        try:
            return json.loads(answer) if answer else {}
        except ValueError as error:
            raise EngineUnavailable(
                f"{self.path} did not respond with JSON: {answer[:80]!r}"
            ) from error

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        """Send a request with the agreed API version, and return the answer, unread.

        If the engine refuses the version, agree a new version and repeat the request once.
        """
        version = self.api_version()
        try:
            return _send_request(connection, method, f"/v{version}{path}", body, headers)
        except EngineError as error:
            self._api_version = ""
            is_refused = error.status == 400 and "version" in error.message
            if not is_refused or self.api_version() == version:
                self._api_version = version
                raise
        connection.close()
        connection.sock = self._connect(connection.timeout or self._seconds_max).sock
        return _send_request(connection, method, f"/v{self._api_version}{path}", body, headers)

    def read_version(self) -> dict[str, Any]:
        """Request the version and the components of the engine."""
        # The path of this request has no API version.
        with closing(self._connect(self._seconds_max)) as connection:
            answer = _read_answer(_send_request(connection, "GET", "/version", None, {}))
        return _parse_object(answer)

    def _connect(self, seconds_max: float) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=seconds_max)
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.settimeout(seconds_max)
        try:
            channel.connect(self.path)
        except OSError as error:
            channel.close()
            reason = error.strerror or str(error)
            raise EngineUnavailable(f"the container engine at {self.path}: {reason}") from error
        connection.sock = channel
        return connection


def agree_version(told: Mapping[str, Any]) -> str:
    """Return the API version to use with an engine, for example 1.44.

    `told` is the engine's answer to /version. The result is API_VERSION, lowered to the engine's
    newest version, or raised to the engine's oldest version. Raise EngineError if the engine's
    newest version is older than API_OLDEST.
    """
    newest, oldest = (_parse_version(told.get(name)) for name in ("ApiVersion", "MinAPIVersion"))
    if newest is not None and newest < API_OLDEST:
        text = f"its API has the version {_version_text(newest)}, and at least"
        raise EngineError(400, f"{text} {_version_text(API_OLDEST)} is needed; update Docker")
    wanted = API_VERSION if newest is None else min(API_VERSION, newest)
    return _version_text(wanted if oldest is None else max(wanted, oldest))


def _parse_version(text: object) -> tuple[int, int] | None:
    major, _, minor = str(text).partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _version_text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def split_reference(name: str) -> tuple[str, str]:
    """Split an image's name into the repository, and the digest or else the tag.

    The tag is `latest` if the name has neither. A tag in front of a digest is dropped.
    """
    repository, at, digest = name.partition("@")
    if at:
        return _split_tag(repository)[0], digest
    return _split_tag(name)


def _split_tag(name: str) -> tuple[str, str]:
    # A colon before the last slash belongs to the registry's port.
    before, colon, tag = name.rpartition(":")
    return (before, tag) if colon and "/" not in tag else (name, "latest")


def _read_upgrade(channel: socket.socket) -> tuple[int, bytes]:
    """Read the head of an answer. Return the status, and the received bytes after the head.

    Raise ConnectionError for an incomplete or too long head.
    """
    received = b""
    while b"\r\n\r\n" not in received:
        part = channel.recv(4096)
        if not part or len(received) > HEAD_BYTES_MAX:
            raise ConnectionError("the answer has no complete head")
        received += part
    head, _, rest = received.partition(b"\r\n\r\n")
    code = head.split(None, 2)[1:2]
    return int(code[0]) if code and code[0].isdigit() else 0, rest


def _send_request(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
) -> http.client.HTTPResponse:
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        if answer.status < 400:
            return answer
        content = answer.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise EngineUnavailable(f"the container engine did not respond: {error!r}") from error
    message = str(_parse_object(content).get("message") or content.decode(errors="replace"))
    message = message.strip()[:MESSAGE_CHARACTERS_MAX]
    if answer.status == 503:
        raise EngineUnavailable(f"the container engine is not ready: {message}")
    raise EngineError(answer.status, message)


def _read_answer(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise EngineUnavailable(f"the container engine aborted its response: {error!r}") from error


def _read_line(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.readline(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise EngineUnavailable(f"the container engine aborted a pull: {error!r}") from error


def _parse_object(content: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _strip_frames(content: bytes) -> bytes:
    """Return the output without the 8-byte headers that mark standard output and error."""
    pieces, place = [], 0
    while place + 8 <= len(content):
        size = int.from_bytes(content[place + 4 : place + 8], "big")
        pieces.append(content[place + 8 : place + 8 + size])
        place += 8 + size
    return b"".join(pieces)
