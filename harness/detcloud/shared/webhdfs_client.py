"""A client of WebHDFS, HDFS's protocol over HTTP, for the namenodes of a file system.

A namenode answers requests about folders, and redirects requests for content to a datanode. If a
namenode is on standby, starting or unavailable, the client asks the next namenode, and repeats this
with growing pauses. Datanodes that do not answer are excluded from further redirects.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from detcloud.shared.bucket_errors import BUSY_STATUSES, BucketError, StoreBusy
from detcloud.shared.connection_failures import LOGIN_REFUSED, describe_failure, login_refused_text
from detcloud.shared.connections import open_connection, request_target
from detcloud.shared.file_parts import FilePart
from detcloud.shared.http import backoff_seconds
from detcloud.shared.proxies import find_proxy

# The beginning of the names of unfinished files. Names of keys with this beginning are escaped.
STAGED = ".put-"
ATTEMPTS_MAX = 6
CONNECT_SECONDS_MAX = 10
READ_SECONDS_MAX = 60
_BLOCK_BYTES = 1 << 20
_ANSWER_BYTES_MAX = 64 << 20
# Errors that another namenode, or the same namenode later, may not give.
_ELSEWHERE = frozenset({"StandbyException", "RetriableException", "SafeModeException"})
_TOO_BUSY = "RetriableException"
_BUSY = (429, 500, 502, 503, 504)
_LOST = (OSError, HTTPException)


class HdfsError(BucketError):
    """HDFS refused a request.

    `kind` is HDFS's name of the error, like FileNotFoundException, or "" if the answer has none.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _NodeAway(Exception):
    """A node cannot answer now, but another node may, or the same node later.

    `is_busy` is whether the node has too many requests.
    """

    def __init__(self, message: str, *, is_busy: bool = False) -> None:
        super().__init__(message)
        self.is_busy = is_busy


class WebHdfsClient:
    """A client of several namenodes, which are asked until one answers. Thread-safe.

    If a node does not answer, is busy or on standby, the request is repeated up to ATTEMPTS_MAX
    attempts with growing pauses; each attempt asks all namenodes. Then methods raise BucketError,
    in place of the errors of `http.client` and of sockets. The error is StoreBusy if a namenode was
    too busy in the last attempt. Methods raise HdfsError at once if HDFS refuses a request.
    """

    def __init__(self, namenodes: Sequence[str], user: str | None = None) -> None:
        """Create a client. `namenodes` are URLs, which may contain the path of a gateway.

        At least one URL is needed. Nothing is sent yet. `user` is the user of the requests. None
        leaves the user to HDFS.
        """
        self._namenodes = tuple(url.rstrip("/") for url in namenodes)
        self._user = user
        self._active = self._namenodes[0]

    def ask(self, method: str, path: str, operation: str, **parameters: str) -> dict[str, Any]:
        """Send a request to a namenode, and return the JSON object of the answer.

        `method` is the HTTP method, `operation` is WebHDFS's name of the operation, `path` is an
        absolute path. `parameters` become further parameters of the URL. After a lost answer, the
        request is sent again, although it may have had its effect. Raise BucketError at once if the
        answer is a redirect or no JSON object.
        """
        status, _, content = self._ask_namenodes(method, path, operation, parameters)
        parsed = _parse_object(content)
        if status >= 300 or parsed is None:
            raise BucketError(f"{operation} of {path!r:.200}: unexpected answer {status}")
        return parsed

    def create(self, folder: str, part: FilePart, block_bytes: int | None = None) -> str:
        """Write a part to a new file with a random name in a folder, and return the file's path.

        The stored content is not compared. `block_bytes` is the size of HDFS's blocks; None means
        HDFS's default. If a datanode fails, send the whole part to another datanode, up to
        ATTEMPTS_MAX attempts with pauses. Each attempt uses a new name, because a datanode without
        an answer may still be writing. Files of failed attempts are deleted if possible. Missing
        folders are created. The part's position changes. Raise BucketError at once if the source of
        the part becomes shorter.
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
        """Append the files `sources` to the file `target`, in this order and atomically.

        All files must exist in the same folder, or HdfsError is raised. The source files no longer
        exist afterwards. After a lost answer, the repeated request raises HdfsError, because the
        sources are missing.
        """
        parameters = {"sources": ",".join(sources)}
        status, _, _ = self._ask_namenodes("POST", target, "CONCAT", parameters)
        if status >= 300:
            raise BucketError(f"CONCAT of {target!r:.200}: unexpected answer {status}")

    def open(self, path: str, start: int, length: int) -> HTTPResponse:
        """Request `length` bytes of a file from the offset `start`, and return the answer.

        Datanodes that fail before they answer are replaced, up to ATTEMPTS_MAX attempts with
        pauses. The caller reads and closes the answer, which may contain fewer or other bytes, or
        break off with errors of `http.client` or of sockets. Raise HdfsError without the file.
        """
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
        """Add a failed datanode to `excluded`, and pause before the next attempt.

        `url` is the request's URL, `failures` the number of failures so far. Raise `error` itself,
        without a pause, if it is a BucketError, for example of the file that is sent. Raise
        BucketError once `failures` is ATTEMPTS_MAX.
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
        """Request the URL of a datanode for an operation from a namenode.

        `excluded` are the hosts of datanodes that failed. If HDFS refuses the request with excluded
        datanodes, because no other is left, clear `excluded` and ask again. Nothing is sent to the
        datanode. Raise HdfsError if HDFS refuses the request. Raise BucketError if the namenode
        names no datanode, or a datanode without TLS although the namenode uses TLS.
        """
        if excluded:
            parameters["excludedatanodes"] = ",".join(excluded)
        try:
            asked, location, _ = self._ask_namenodes(method, path, operation, parameters)
        except HdfsError:
            if not excluded:
                raise
            # No other datanode exists, and the failed one may be available again.
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
        """Return the HTTP status, location and content of the first namenode that can answer.

        An attempt asks each namenode once, beginning with the last that answered. Attempts are
        repeated after growing pauses. Redirects are returned, not followed. Raise HdfsError at once
        if HDFS refuses the request. After ATTEMPTS_MAX attempts without an answer, raise StoreBusy
        if a namenode was busy in the last attempt, else BucketError.
        """
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
                except _NodeAway as problem:
                    said.append(f"{namenode}: {problem}")
                    is_busy = is_busy or problem.is_busy
                    continue
                except HdfsError:
                    # Only the active namenode refuses requests.
                    self._active = namenode
                    raise
                self._active = namenode
                return answered
            failures += 1
            if failures >= ATTEMPTS_MAX:
                kind = StoreBusy if is_busy else BucketError
                raise kind(f"no namenode responds: {'; '.join(said)}")
            time.sleep(backoff_seconds(failures))


def _ask_namenode(method: str, namenode: str, target: str, path: str) -> tuple[int, str, bytes]:
    """Send a request to a namenode once. Return the HTTP status, location and content.

    The location is "" without a redirect. Redirects are not followed. `target` is the path and
    query of the URL, `path` is for messages. Raise _NodeAway if the namenode does not answer, the
    answer breaks off, or another namenode may answer. Raise HdfsError if HDFS refuses the request.
    """
    try:
        with closing(_send(method, namenode + target)) as answer:
            content = answer.read(_ANSWER_BYTES_MAX)
            # Python's client raises no error for a cut answer that is read with a size.
            if answer.length and len(content) < _ANSWER_BYTES_MAX:
                raise _NodeAway("the answer breaks off")
    except BucketError:
        raise
    except _LOST as error:
        raise _NodeAway(str(error) or type(error).__name__) from None
    if answer.status >= 400:
        _raise_for_error(answer.status, content, path)
    return answer.status, answer.headers.get("Location", ""), content


def _check_datanode(answer: HTTPResponse, path: str) -> None:
    """Close an answer with a status from 300 on, and raise its error as `_raise_for_error` does.

    Do nothing for any other answer, which stays open.
    """
    if answer.status >= 300:
        with closing(answer):
            _raise_for_error(answer.status, answer.read(_ANSWER_BYTES_MAX), path)


def _raise_for_error(status: int, content: bytes, path: str) -> None:
    """Raise _NodeAway for an error that may pass, and HdfsError for any other error.

    Errors that may pass are a standby or starting namenode, a request for a retry, and, without
    HDFS's name of an error, the statuses 429, 500, 502, 503 and 504. `content` is the answer's
    body, `path` is for messages.
    """
    parsed = _parse_object(content) or {}
    said = parsed.get("RemoteException")
    said = said if isinstance(said, dict) else {}
    kind = str(said.get("exception") or "")
    # The further lines contain a place in Hadoop's code.
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
    """Send a request on a new connection, and return the answer, which closes the connection.

    The connection uses the proxy and the authorities that the environment names. The body of the
    answer is not read yet. Redirects and error statuses are returned like others. Nothing is
    repeated. Raise OSError or HTTPException without an answer, and any error of reading `body`.
    Raise BucketError for an invalid address or environment, and if a proxy refuses the request or
    the certificate of the node is not accepted.
    """
    try:
        target, proxy_headers = request_target(url)
        connection = open_connection(url, CONNECT_SECONDS_MAX, blocksize=_BLOCK_BYTES)
    except ValueError as error:
        raise BucketError(str(error)) from None
    sent = {"Connection": "close", **(headers or {}), **proxy_headers}
    if body is None and method != "GET":
        sent["Content-Length"] = "0"
    try:
        try:
            connection.connect()
        except OSError as error:
            failure = describe_failure(url, error)
            if failure.is_final:
                raise BucketError(failure.text) from error
            if find_proxy(url) is None:
                raise
            raise OSError(failure.text) from error
        connection.sock.settimeout(READ_SECONDS_MAX)
        # A node that refuses a file may answer early and stop reading.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, target, body, sent)
        answer = connection.getresponse()
        if answer.status == LOGIN_REFUSED and url.startswith("http:") and find_proxy(url):
            raise BucketError(login_refused_text(url))
        return answer
    except BaseException:
        connection.close()
        raise
