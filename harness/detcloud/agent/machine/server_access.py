"""Requests of the installer to the cluster, and the unpacking of the agent's code.

The installer's script contains this module, which therefore imports no other module of detcloud.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import ssl
import tarfile
import urllib.request
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 10.0
ANSWER_BYTES_MAX = 256 << 20


class ServerUnreachable(Exception):
    """The cluster gives no valid answer to this machine. The message says why."""


class _NoConnection(ServerUnreachable):
    """A server of the cluster gives no answer."""


class ServerAnswer(NamedTuple):
    """An answer of the cluster."""

    content: bytes
    time_seconds: float | None
    """The time of the server in epoch seconds, or None."""


def get(url: str, path: str, *, pin: str = "", token: str = "") -> ServerAnswer:
    """Send a GET request to the cluster at `url`, and return the answer.

    With a pin, the certificate of the server must have the pinned digest, and nothing else of the
    of the certificate counts. The token is only sent afterwards. A redirect to an object store is
    followed without the token. The caller checks the digest of such content, so that a store
    without TLS is accepted.

    Args:
        url: the cluster. Of several addresses with commas, the first server that answers counts.
        path: the path below the URL, with a leading slash.
        pin: `sha256:` and the digest of the certificate, or "".
        token: the token, or "".

    Raises:
        ServerUnreachable: no answer, another certificate, or an error status.
    """
    failures = []
    for address in filter(None, (each.strip().rstrip("/") for each in url.split(","))):
        try:
            return _get_from(address, path, pin, token)
        except _NoConnection as failure:
            failures.append(str(failure))
    raise ServerUnreachable("; ".join(failures) or f"{url!r} is not an address")


def _get_from(url: str, path: str, pin: str, token: str) -> ServerAnswer:
    """Send a GET request to a single server. Raises ServerUnreachable as `get` does."""
    parts = urlsplit(url)
    try:
        connection = _connect(parts.scheme, parts.hostname or "", parts.port, pin)
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            answer = connection.getresponse()
            content = answer.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _NoConnection(f"{url} does not answer: {error}") from error
    if answer.status in (303, 307):
        return ServerAnswer(_download(answer.getheader("Location") or ""), None)
    if answer.status != 200:
        raise ServerUnreachable(f"{url}{path} answered {answer.status}: {_message(content)}")
    date = answer.getheader("Date")
    try:
        seconds = parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        seconds = None
    return ServerAnswer(content, seconds)


def unpack(content: bytes, folder: str) -> None:
    """Unpack a compressed tar archive of plain files into a folder.

    Python 3.11.2 of Debian has no filters for tar archives, so that names are checked here.

    Raises:
        ValueError: the archive is damaged, or has a link or a name outside the folder.
        OSError: a file cannot be written.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for member in archive:
                parts = member.name.split("/")
                opened = archive.extractfile(member) if member.isreg() else None
                if opened is None or ".." in parts or "" in parts:
                    raise ValueError(f"the archive has an unexpected entry {member.name!r}")
                path = Path(folder, *parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(opened.read())
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"the archive is damaged: {error}") from error


def _download(url: str) -> bytes:
    """Return the content of a signed URL of an object store. Raise ServerUnreachable."""
    try:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("the redirect leads to no web address")
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            content: bytes = answer.read(ANSWER_BYTES_MAX)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServerUnreachable(f"the object store does not answer: {error}") from error
    return content


def _connect(scheme: str, host: str, port: int | None, pin: str) -> http.client.HTTPConnection:
    """Open a connection, and check the certificate against the pin."""
    if scheme != "https":
        plain = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        plain.connect()
        return plain
    context = ssl.create_default_context()
    if pin:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    secure = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)
    secure.connect()
    found = secure.sock.getpeercert(binary_form=True) or b""
    if pin and f"sha256:{hashlib.sha256(found).hexdigest()}" != pin.lower():
        secure.close()
        raise ValueError("the server's certificate is not the pinned certificate")
    return secure


def _message(content: bytes) -> str:
    """Return the message of an error of the API, or "" for another answer."""
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""
