"""JSON over HTTP on the standard library: keep-alive, timeouts, retries and typed errors.

`http.client` takes some 30 ms to import, so it is loaded at the first request: a command that makes
none starts without it (docs/benchmarks.md, `--version` and `--help`). A transport serves one thread
at a time; only `interrupt` may be called from another one. Tokens go to the transport's
own origin alone and never into a message.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from detcloud.shared.errors import DetcloudError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from http.client import HTTPConnection, HTTPResponse

Answer = TypeVar("Answer")

RETRY_FIRST_SECONDS = 0.2
RETRY_SECONDS_MAX = 15.0
ATTEMPTS_MAX = 6
# No attempt begins so long after the first one.
ATTEMPTS_SECONDS_MAX = 60.0
# The callback for slow answers is called when one takes longer.
SILENCE_SECONDS = 5.0
ANSWER_BYTES_MAX = 64 << 20
REDIRECTS_MAX = 5
CHUNK_BYTES = 1 << 18


class ApiError(DetcloudError):
    """The server answered with an error: its status, code, message and details.

    Its text is the message and a line for each detail that the message does not tell.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details or []

    def __str__(self) -> str:
        unmentioned = [d for d in self.details if str(d.get("message") or "") not in self.message]
        lines = [f"line {d['line']}: " if d.get("line") else "" for d in unmentioned]
        texts = [f"{line}{detail_text(d)}" for line, d in zip(lines, unmentioned, strict=True)]
        return "\n".join([self.message, *texts])

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed a moment later."""
        return self.status == 429 or self.status >= 500


class Unreachable(DetcloudError, OSError):
    """No complete answer came: refused, timed out, cut off, or not HTTP."""


def detail_text(detail: Mapping[str, Any]) -> str:
    """A line `PATH: message (hint)` for one detail of an error, without the parts it lacks."""
    parts = [str(detail.get(name) or "") for name in ("path", "message")]
    hint = detail.get("hint")
    return ": ".join(filter(None, parts)) + (f" ({hint})" if hint else "")


def query_text(query: Mapping[str, object]) -> str:
    """The end of a URL that has these queries; those that are None or empty lists are left out."""
    present = {name: value for name, value in query.items() if value not in (None, [])}
    return f"?{urlencode(present, doseq=True)}" if present else ""


def backoff_seconds(failures: int) -> float:
    """The pause after `failures` >= 1, with full jitter.

    It is uniform in [0, min(15 s, 0.2 s * 2^(failures - 1))].
    """
    ceiling = min(RETRY_SECONDS_MAX, RETRY_FIRST_SECONDS * 2 ** min(failures - 1, 10))
    return random.uniform(0.0, ceiling)


class Transport:
    """A connection to the API at `base_url` (scheme, host, optional port and path prefix).

    Raises ValueError for an address that is not http or https and for a token that no header can
    carry; its requests raise ApiError and Unreachable. A copy or a pickle has the token and a
    connection of its own. `on_silence` is called with the address when a request has had no answer
    for `silence_seconds`; after `attempts_seconds_max` nothing is tried again.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None,
        *,
        timeout_seconds: float = 30.0,
        attempts_max: int = ATTEMPTS_MAX,
        attempts_seconds_max: float = ATTEMPTS_SECONDS_MAX,
        silence_seconds: float = SILENCE_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        _origin(base_url)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("the token contains an invalid character, such as a line break")
        self.base_url = base_url.rstrip("/")
        self.token = token
        self.timeout_seconds = timeout_seconds
        self.on_silence: Callable[[str], None] | None = None
        self._attempts_max = attempts_max
        self._attempts_seconds_max = attempts_seconds_max
        self._silence_seconds = silence_seconds
        self._sleep = sleep
        self._connection: HTTPConnection | None = None

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        retry: bool = True,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Send `body` as JSON (bytes are JSON already) and return the parsed answer, None if empty.

        With `retry`, a lost connection, 429 and 5xx are tried again: pass False, or an
        Idempotency-Key header, where a repeat would do something twice.
        """
        sent = {"Accept": "application/json", **(headers or {})}
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")

        def exchange_once() -> Any:
            answer = self._exchange(method, self._absolute_url(path), data, sent, timeout_seconds)
            return _parse_answer(answer, self.base_url)

        return self._attempt(exchange_once, retry)

    def download(self, path_or_url: str, file: BinaryIO) -> int:
        """Write the answer's bytes to the seekable `file` from its position on; return their count.

        Follows up to five redirects. A failed attempt is repeated after truncating the file.
        """
        start = file.tell()

        def download_once() -> int:
            file.seek(start)
            file.truncate()
            with self._follow_redirects(self._absolute_url(path_or_url)) as answer:
                expected = answer.length
                copied = _copy_answer(answer, file)
            if expected is not None and copied != expected:
                # Without its parameters, which may hold a signature.
                place = path_or_url.partition("?")[0]
                raise Unreachable(f"{place} was cut off after {copied} of {expected} bytes")
            return copied

        return self._attempt(download_once, retry=True)

    def upload(
        self,
        path_or_url: str,
        file: BinaryIO,
        size: int,
        *,
        method: str = "PUT",
        headers: Mapping[str, str] | None = None,
        retry: bool = True,
    ) -> None:
        """Send `size` bytes of the seekable `file` from its position on, also when repeated, which
        it is with `retry` as in `request`.
        """
        start = file.tell()
        sent = {**(headers or {}), "Content-Length": str(size)}

        def upload_once() -> None:
            file.seek(start)
            answer = self._exchange(method, self._absolute_url(path_or_url), file, sent)
            _read_content(answer, self.base_url)

        self._attempt(upload_once, retry)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None, "on_silence": None}

    def interrupt(self) -> None:
        """Cut off the request in flight in another thread, which then raises Unreachable."""
        import socket

        connection = self._connection
        sock = connection.sock if connection else None
        if sock is not None:
            # An SSL socket's own shutdown() would drop its state under the reader's feet.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the kept connection; the next request opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _absolute_url(self, path_or_url: str) -> str:
        return self.base_url + path_or_url if path_or_url.startswith("/") else path_or_url

    def _attempt(self, attempt: Callable[[], Answer], retry: bool) -> Answer:
        failures = 0
        give_up_at = time.monotonic() + self._attempts_seconds_max
        while True:
            try:
                return attempt()
            except (ApiError, Unreachable) as error:
                # What is left unread of an answer must not become the next one's beginning.
                self.close()
                failures += 1
                final = isinstance(error, ApiError) and not error.is_transient
                spent = failures >= self._attempts_max or time.monotonic() >= give_up_at
                if final or not retry or spent:
                    raise
            self._sleep(backoff_seconds(failures))

    def _follow_redirects(self, url: str) -> HTTPResponse:
        for _ in range(REDIRECTS_MAX + 1):
            answer = self._exchange("GET", url, None, {})
            if answer.status not in (301, 302, 303, 307, 308):
                _raise_for_status(answer)
                return answer
            answer.close()
            self.close()
            url = urljoin(url, answer.headers.get("Location", ""))
        raise Unreachable(f"{urlsplit(url).netloc} redirected more than {REDIRECTS_MAX} times")

    def _exchange(
        self,
        method: str,
        url: str,
        body: bytes | BinaryIO | None,
        headers: Mapping[str, str],
        timeout_seconds: float | None = None,
    ) -> HTTPResponse:
        """Send one request; the answer, whose body is still to be read."""
        from http.client import HTTPException

        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        is_own_origin = _origin(url) == _origin(self.base_url)
        sent = dict(headers)
        if not is_own_origin:
            sent["Connection"] = "close"
        elif self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        timeout = timeout_seconds or self.timeout_seconds
        connection = (
            self._open_connection(timeout) if is_own_origin else _new_connection(url, timeout)
        )
        try:
            connection.request(method, target or "/", body, sent)
            self._report_silence(connection, timeout)
            answer = connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            raise _unreachable_error(url, error) from error
        if not is_own_origin and connection.sock is not None:
            # The answer keeps the socket open until it is read or closed itself.
            connection.sock.close()
        return answer

    def _report_silence(self, connection: HTTPConnection, timeout_seconds: float) -> None:
        """Wait for the answer's first byte for a while, and say so if none comes."""
        if self.on_silence is None or self._silence_seconds >= timeout_seconds:
            return
        if connection.sock is not None and not _is_readable(
            connection.sock.fileno(), self._silence_seconds
        ):
            self.on_silence("://".join(urlsplit(self.base_url)[:2]))

    def _open_connection(self, timeout_seconds: float) -> HTTPConnection:
        """The kept connection if the server has not closed it meanwhile, else a new one."""
        kept = self._connection
        if kept is not None and kept.sock is not None and not _is_readable(kept.sock.fileno()):
            kept.sock.settimeout(timeout_seconds)
            return kept
        self.close()
        self._connection = _new_connection(self.base_url, timeout_seconds)
        return self._connection


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an address; expected http://HOST:PORT or https://HOST")
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _new_connection(url: str, timeout_seconds: float) -> HTTPConnection:
    from http.client import HTTPConnection, HTTPSConnection

    scheme, host, port = _origin(url)
    kind = HTTPSConnection if scheme == "https" else HTTPConnection
    return kind(host, port, timeout=timeout_seconds)


def _is_readable(descriptor: int, seconds: float = 0) -> bool:
    """Whether something arrives within a time; between requests, that the server hung up."""
    import select

    return bool(select.select([descriptor], [], [], seconds)[0])


def _unreachable_error(url: str, error: Exception) -> Unreachable:
    reason = str(error) or type(error).__name__
    return Unreachable(f"{'://'.join(urlsplit(url)[:2])} could not be reached: {reason}")


def _copy_answer(answer: HTTPResponse, file: BinaryIO) -> int:
    from http.client import HTTPException

    copied = 0
    try:
        while chunk := answer.read(CHUNK_BYTES):
            file.write(chunk)
            copied += len(chunk)
    except (ConnectionError, TimeoutError, HTTPException) as error:
        raise Unreachable(f"the download was cut off after {copied} bytes: {error}") from error
    return copied


def _parse_answer(answer: HTTPResponse, url: str) -> Any:
    content = _read_content(answer, url)
    if not content:
        return None
    try:
        return json.loads(content)
    except ValueError as error:
        raise Unreachable(
            f"{url} did not respond with JSON: {content[:80]!r}; is it the address of a cluster?"
        ) from error


def _read_content(answer: HTTPResponse, url: str) -> bytes:
    from http.client import HTTPException

    _raise_for_status(answer)
    try:
        content = answer.read(ANSWER_BYTES_MAX + 1)
    except (OSError, HTTPException) as error:
        raise _unreachable_error(url, error) from error
    if answer.length and len(content) <= ANSWER_BYTES_MAX:
        # Python's client does not say so of an answer that is read up to a length.
        raise _unreachable_error(url, HTTPException("the answer was cut off"))
    if len(content) > ANSWER_BYTES_MAX:
        raise Unreachable(f"{url} answered more than {ANSWER_BYTES_MAX} bytes")
    return content


def _raise_for_status(answer: HTTPResponse) -> None:
    if answer.status < 300:
        return
    from http.client import HTTPException

    error: dict[str, Any] = {}
    try:
        parsed = json.loads(answer.read(CHUNK_BYTES))
        if isinstance(parsed, dict) and isinstance(parsed.get("error"), dict):
            error = parsed["error"]
    except (OSError, ValueError, HTTPException):
        pass
    finally:
        answer.close()
    message = str(error.get("message") or f"the server answered {answer.status} {answer.reason}")
    details = error.get("details")
    raise ApiError(
        answer.status,
        str(error.get("code") or f"http_{answer.status}"),
        message,
        details if isinstance(details, list) else None,
    )
