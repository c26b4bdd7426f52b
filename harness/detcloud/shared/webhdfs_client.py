"""Requests of WebHDFS, HDFS's protocol over HTTP, to the namenodes of one file system.

A namenode answers what is in folders itself, and for the content of files names a datanode. One
that is a standby, is not there or is starting says so, and the next is asked; all are asked again
with pauses that grow. Datanodes that do not answer are excluded from what a namenode may name.
"""

from __future__ import annotations

import json
import secrets
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from detcloud.shared.bucket_errors import BUSY_STATUSES, BucketError, StoreBusy
from detcloud.shared.file_parts import FilePart
from detcloud.shared.http import backoff_seconds

# Files on their way; the dot of a key's part that begins so is escaped.
STAGED = ".put-"
ATTEMPTS_MAX = 6
CONNECT_SECONDS_MAX = 10
READ_SECONDS_MAX = 60
_BLOCK_BYTES = 1 << 20
_ANSWER_BYTES_MAX = 64 << 20
# What a namenode says that another one, or the same one later, may not say.
_ELSEWHERE = frozenset({"StandbyException", "RetriableException", "SafeModeException"})
_TOO_BUSY = "RetriableException"
_BUSY = (429, 500, 502, 503, 504)
_LOST = (OSError, HTTPException)


class HdfsError(BucketError):
    """HDFS refused a request; `kind` is HDFS's name of the error, like FileNotFoundException."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _NodeAway(Exception):
    """A node cannot answer now; another one may, or the same one later. `is_busy`: it has too many
    requests.
    """

    def __init__(self, message: str, *, is_busy: bool = False) -> None:
        super().__init__(message)
        self.is_busy = is_busy


class WebHdfsClient:
    """Requests as `user`, to the one of several namenodes that answers; for many threads at once.

    Its methods raise HdfsError for what HDFS refuses, and BucketError for what repeats did not
    mend.
    """

    def __init__(self, namenodes: Sequence[str], user: str | None = None) -> None:
        """`namenodes` are URLs, with the folder of a gateway if there is one."""
        self._namenodes = tuple(url.rstrip("/") for url in namenodes)
        self._user = user
        self._active = self._namenodes[0]

    def ask(self, method: str, path: str, operation: str, **parameters: str) -> dict[str, Any]:
        """The JSON object that a namenode answers. The request may have been repeated."""
        status, _, content = self._ask_namenodes(method, path, operation, parameters)
        parsed = _parse_object(content)
        if status >= 300 or parsed is None:
            raise BucketError(f"{operation} of {path!r:.200}: unexpected answer {status}")
        return parsed

    def create(self, folder: str, part: FilePart, block_bytes: int | None = None) -> str:
        """Write a new file with a random name, in blocks of that size or of HDFS's; its path.

        Every attempt has a name of its own: a datanode whose answer did not come may still write.
        What failed attempts left is removed as far as it is there.
        """
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(part))}
        options = {} if block_bytes is None else {"blocksize": str(block_bytes)}
        excluded: list[str] = []
        failures = 0
        while True:
            path = f"{folder}/{STAGED}{secrets.token_hex(16)}"
            url = self._datanode_url("PUT", path, "CREATE", excluded, overwrite="false", **options)
            try:
                part.seek(0)
                with closing(_send("PUT", url, headers, part)) as answer:
                    _check_datanode(answer, path)
                return path
            except (*_LOST, _NodeAway) as error:
                with suppress(OSError):
                    self.ask("DELETE", path, "DELETE", recursive="false")
                failures += 1
                self._exclude(url, error, failures, excluded)

    def concat(self, target: str, sources: Sequence[str]) -> None:
        """Append files to another one of the same folder, in that order and all at once; they are
        gone then.
        """
        parameters = {"sources": ",".join(sources)}
        status, _, _ = self._ask_namenodes("POST", target, "CONCAT", parameters)
        if status >= 300:
            raise BucketError(f"CONCAT of {target!r:.200}: unexpected answer {status}")

    def open(self, path: str, start: int, length: int) -> HTTPResponse:
        """The answer of a datanode whose content is that part of a file."""
        excluded: list[str] = []
        failures = 0
        while True:
            part = {"offset": str(start), "length": str(length)}
            url = self._datanode_url("GET", path, "OPEN", excluded, **part)
            try:
                answer = _send("GET", url)
                _check_datanode(answer, path)
                return answer
            except (*_LOST, _NodeAway) as error:
                failures += 1
                self._exclude(url, error, failures, excluded)

    def _exclude(self, url: str, error: Exception, failures: int, excluded: list[str]) -> None:
        """Exclude a datanode that failed from further attempts, or raise a final error: HDFS's, or
        one of the file that is sent.
        """
        if isinstance(error, BucketError):
            raise error
        node = urlsplit(url).netloc
        if failures >= ATTEMPTS_MAX:
            raise BucketError(f"datanode {node} does not answer: {error}") from error
        if node not in excluded:
            excluded.append(node)
        time.sleep(backoff_seconds(failures))

    def _datanode_url(
        self, method: str, path: str, operation: str, excluded: list[str], **parameters: str
    ) -> str:
        """The URL that a namenode redirects to."""
        if excluded:
            parameters["excludedatanodes"] = ",".join(excluded)
        try:
            asked, location, _ = self._ask_namenodes(method, path, operation, parameters)
        except HdfsError:
            if not excluded:
                raise
            # There is no other: the one that failed may be there again.
            excluded.clear()
            del parameters["excludedatanodes"]
            asked, location, _ = self._ask_namenodes(method, path, operation, parameters)
        if asked != 307 or not location:
            raise BucketError(f"{operation} of {path!r:.200}: the namenode names no datanode")
        target = urlsplit(location)
        if target.scheme not in ("http", "https"):
            raise BucketError(f"the namenode redirects to {location!r:.200}, which is not followed")
        if self._active.startswith("https:") and target.scheme != "https":
            raise BucketError(
                f"{self._active} redirects to a datanode without TLS, which is not followed"
            )
        return location

    def _ask_namenodes(
        self, method: str, path: str, operation: str, parameters: Mapping[str, str]
    ) -> tuple[int, str, bytes]:
        """The status, location and content that the first namenode answers which can."""
        user = {} if self._user is None else {"user.name": self._user}
        query = urlencode({"op": operation, **user, **parameters}, quote_via=quote)
        target = f"/webhdfs/v1{quote(path)}?{query}"
        failures = 0
        while True:
            said: list[str] = []
            is_busy = False
            first = self._namenodes.index(self._active)
            for namenode in (*self._namenodes[first:], *self._namenodes[:first]):
                try:
                    answered = _ask_namenode(method, namenode, target, path)
                    self._active = namenode
                    return answered
                except _NodeAway as problem:
                    said.append(f"{namenode}: {problem}")
                    is_busy = is_busy or problem.is_busy
            failures += 1
            if failures >= ATTEMPTS_MAX:
                kind = StoreBusy if is_busy else BucketError
                raise kind(f"no namenode responds: {'; '.join(said)}")
            time.sleep(backoff_seconds(failures))


def _ask_namenode(method: str, namenode: str, target: str, path: str) -> tuple[int, str, bytes]:
    """Ask one namenode; raises _NodeAway where another one may answer, and HdfsError."""
    try:
        with closing(_send(method, namenode + target)) as answer:
            content = answer.read(_ANSWER_BYTES_MAX)
            # Python's client does not say so of an answer that is read up to a length.
            if answer.length and len(content) < _ANSWER_BYTES_MAX:
                raise _NodeAway("the answer breaks off")
    except _LOST as error:
        raise _NodeAway(str(error) or type(error).__name__) from None
    if answer.status >= 400:
        _raise_for_error(answer.status, content, path)
    return answer.status, answer.headers.get("Location", ""), content


def _check_datanode(answer: HTTPResponse, path: str) -> None:
    """Raise for an answer that is an error, as `_raise_for_error` does."""
    if answer.status >= 300:
        with closing(answer):
            _raise_for_error(answer.status, answer.read(_ANSWER_BYTES_MAX), path)


def _raise_for_error(status: int, content: bytes, path: str) -> None:
    """Raise _NodeAway for what may pass, and else HdfsError."""
    parsed = _parse_object(content) or {}
    said = parsed.get("RemoteException")
    said = said if isinstance(said, dict) else {}
    kind = str(said.get("exception") or "")
    # Behind its first line there is where in Hadoop's code it was raised.
    first, *_ = str(said.get("message") or "").splitlines() or [""]
    if kind in _ELSEWHERE or (not kind and status in _BUSY):
        is_busy = status in BUSY_STATUSES or kind == _TOO_BUSY
        raise _NodeAway(f"{status} {kind} {first}".strip(), is_busy=is_busy)
    remedy = ""
    if status == 401:
        remedy = "; it requires Kerberos, which is not supported"
    if kind == "AccessControlException":
        remedy = "; set a user with write permission"
    raise HdfsError(kind, f"{path!r:.200}: {status} {kind} {first}".rstrip() + remedy)


def _parse_object(content: bytes) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        parsed = json.loads(content)
        if isinstance(parsed, dict):
            return parsed
    return None


def _send(
    method: str, url: str, headers: Mapping[str, str] | None = None, body: Any = None
) -> HTTPResponse:
    """Send one request on a connection of its own, which ends with the answer."""
    place = urlsplit(url)
    options: dict[str, Any] = {"timeout": CONNECT_SECONDS_MAX, "blocksize": _BLOCK_BYTES}
    connection: HTTPConnection
    if place.scheme == "https":
        context = ssl.create_default_context()
        connection = HTTPSConnection(place.netloc, context=context, **options)
    else:
        connection = HTTPConnection(place.netloc, **options)
    target = f"{place.path}?{place.query}"
    sent = {"Connection": "close", **(headers or {})}
    if body is None and method != "GET":
        sent["Content-Length"] = "0"
    try:
        connection.connect()
        connection.sock.settimeout(READ_SECONDS_MAX)
        # Who refuses a file may answer before it is there, and read no further.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, target, body, sent)
        return connection.getresponse()
    except BaseException:
        connection.close()
        raise
