"""JSON over HTTP on the standard library: keep-alive, timeouts, retries and typed errors.

`http.client` takes some 30 ms to import, so the first request imports it
(docs/benchmarks.md, `--version` and `--help`). Threads may share a transport, since each request
uses a separate connection. Requests to other machines go through the proxy that the environment
names (`proxies.py`), and trust the authorities that it names (`certificates.py`). Tokens are only
sent to the transport's own origin, and never appear in messages.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from detcloud.shared.certificates import tls_context
from detcloud.shared.connection_failures import (
    LOGIN_REFUSED,
    describe_failure,
    login_refused_text,
)
from detcloud.shared.connections import (
    is_readable,
    request_target,
)
from detcloud.shared.errors import DetcloudError
from detcloud.shared.pins import find_pin, pin_server
from detcloud.shared.proxies import find_proxy
from detcloud.shared.server_list import MOVING_STATUSES, ServerList, use_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from http.client import HTTPConnection, HTTPResponse

Answer = TypeVar("Answer")

RETRY_FIRST_SECONDS = 0.2
RETRY_SECONDS_MAX = 15.0
ATTEMPTS_MAX = 6
# No attempt begins later than this after the first attempt.
ATTEMPTS_SECONDS_MAX = 60.0
# The time without an answer after which the callback for slow answers is called.
SILENCE_SECONDS = 5.0
ANSWER_BYTES_MAX = 64 << 20
REDIRECTS_MAX = 5
CHUNK_BYTES = 1 << 18


class ApiError(DetcloudError):
    """The server answered with an error status.

    `status` is the HTTP status, `code` a word for programs, `message` a sentence for users. The
    error's text is the message, with a line for each of the `details` that the message lacks.
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
        """Whether a repeated request may succeed: status 429 or 5xx."""
        return self.status == 429 or self.status >= 500


class Unreachable(DetcloudError, OSError):
    """The server gave no complete and valid answer, or could not be reached."""


class WayClosed(Unreachable):
    """A proxy refuses the login or the target, or the server's certificate is not accepted.

    A repeated request fails in the same way until somebody changes a setting.
    """


def detail_text(detail: Mapping[str, Any]) -> str:
    """Return the line `PATH: message (hint)` for a detail of an error.

    Missing, null and empty parts are omitted, and other values become text. "" if no part is left.
    """
    parts = [str(detail.get(name) or "") for name in ("path", "message")]
    hint = detail.get("hint")
    return ": ".join(filter(None, parts)) + (f" ({hint})" if hint else "")


def query_text(query: Mapping[str, object]) -> str:
    """Return the query of a URL, beginning with `?`, or "" if no parameter is left.

    Parameters that are None or an empty list are omitted; "", 0 and False are kept. A list gives a
    repeated parameter. Values become text by `str` and are percent-encoded.
    """
    present = {name: value for name, value in query.items() if value not in (None, [])}
    return f"?{urlencode(present, doseq=True)}" if present else ""


def backoff_seconds(failures: int) -> float:
    """Return a random pause in seconds after the given number of failures, at least 1.

    The pause is uniform in [0, min(15 s, 0.2 s * 2^(failures - 1))].
    """
    ceiling = min(RETRY_SECONDS_MAX, RETRY_FIRST_SECONDS * 2 ** min(failures - 1, 10))
    return random.uniform(0.0, ceiling)


class Transport:
    """A client of the API at `base_url` (scheme, host, optional port and path prefix).

    A cluster may have several servers, whose addresses are separated by commas. A request that
    fails because of a server is repeated at the next server, as far as requests are repeated.

    Requests raise ApiError for an error status, Unreachable without a valid answer. `request`,
    `download` and `upload` repeat transient failures with random pauses, within the limits below.
    The token is only sent to the origin of `base_url`, and several threads may share the object.
    The attribute `on_silence`, if set, is called with the server's address if a request has no
    answer for `silence_seconds`. A copy or pickle has the token and the server's pin, but new
    connections and no `on_silence`.

    Args:
        token: the token for the server, or None.
        timeout_seconds: the limit on each wait for the server.
        attempts_max: the limit on attempts of a request.
        attempts_seconds_max: the time after which no further attempt begins.
        sleep: pauses for a number of seconds.

    Raises:
        ValueError: the address is not http or https, the token is invalid in a header, or the
            environment names an invalid proxy or file of authorities.
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
        self._servers = ServerList(base_url)
        for url in self._servers.urls:
            find_proxy(url)
            if url.startswith("https"):
                tls_context()
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("the token contains an invalid character, such as a line break")
        self.token = token
        self.timeout_seconds = timeout_seconds
        self.on_silence: Callable[[str], None] | None = None
        self._attempts_max = attempts_max
        self._attempts_seconds_max = attempts_seconds_max
        self._silence_seconds = silence_seconds
        self._sleep = sleep
        self._interruptions = 0

    @property
    def base_url(self) -> str:
        """The address of the server in use, without a slash at the end."""
        return self._servers.url

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
        """Send a request with `body` as JSON, and return the parsed JSON answer.

        A path with a leading slash is appended to the base URL; any other text is a whole URL.
        `body` of None sends no body. Bytes in `body` must be JSON already. Return None for an empty
        answer. `timeout_seconds` replaces the transport's limit on each wait; None and 0 keep it.

        With `retry`, repeat the request after a lost connection, an invalid answer, status 429 or
        5xx, with random pauses, up to the limits of the transport. Pass False, or an
        Idempotency-Key header, if a repeated request would have a second effect. Raise ApiError for
        an error status or a redirect, which is not followed. Raise Unreachable without a complete
        JSON answer of at most ANSWER_BYTES_MAX. The errors are those of the last attempt. Raise
        TypeError for a `body` that has no JSON form, and ValueError for an invalid URL.
        """
        sent = {"Accept": "application/json", **(headers or {})}
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")

        def exchange_once() -> Any:
            url = self._absolute_url(path)
            with self._exchange(method, url, data, sent, timeout_seconds) as answer:
                return _parse_answer(answer, self.base_url)

        return self._attempt(exchange_once, retry)

    def download(self, path_or_url: str, file: BinaryIO) -> int:
        """Download into the seekable `file` from the present position on. Return the byte count.

        The file is truncated at the present position first. A path is relative to the base URL.
        Follow up to five redirects; the token is not sent to other origins. After a lost
        connection, a cut answer, status 429 or 5xx, truncate the file again and repeat, with random
        pauses, up to the limits of the transport. At the end, the position is behind the last byte.

        Raise ApiError at once for another error status. Raise ApiError or Unreachable after the
        last attempt; the file may then contain a part. An OSError of the file is not repeated.
        """
        start = file.tell()

        def download_once() -> int:
            file.seek(start)
            file.truncate()
            with self._follow_redirects(self._absolute_url(path_or_url)) as answer:
                expected = answer.length
                copied = _copy_answer(answer, file)
            if expected is not None and copied != expected:
                # The message omits the parameters, which may contain a signature.
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
        """Upload `size` bytes of the seekable `file` from the present position on.

        The file must end after these bytes, because all bytes up to the end are sent. A path is
        relative to the base URL. The content of the answer is ignored. With `retry`, repeat the
        whole upload after a lost connection, status 429 or 5xx, with random pauses, up to the
        limits of the transport. Raise ApiError for an error status or a redirect, which is not
        followed, and Unreachable without a complete answer. An error of reading the file becomes
        Unreachable, too, and is repeated.
        """
        start = file.tell()
        sent = {**(headers or {}), "Content-Length": str(size)}

        def upload_once() -> None:
            file.seek(start)
            with self._exchange(method, self._absolute_url(path_or_url), file, sent) as answer:
                _read_content(answer, self.base_url)

        self._attempt(upload_once, retry)

    def __getstate__(self) -> dict[str, Any]:
        pins = {url: find_pin(url) for url in self._servers.urls}
        return {**self.__dict__, "on_silence": None, "_pins": pins}

    def __setstate__(self, state: dict[str, Any]) -> None:
        pins = state.pop("_pins")
        self.__dict__.update(state)
        for url, pin in pins.items():
            if pin is not None:
                pin_server(url, pin)

    def interrupt(self) -> None:
        """Cut off all requests of other threads in flight to the transport's own origin.

        A request without `retry` then raises Unreachable. Other requests are repeated while
        attempts are left. Later requests are possible.
        """
        self._interruptions += 1
        self._servers.interrupt()

    def interrupt_if_moved(self) -> None:
        """Interrupt if the connection of a request has an address that this machine has lost."""
        if self._servers.have_moved():
            self.interrupt()

    def close(self) -> None:
        """Close the idle connections. A later request opens a new connection.

        Requests of other threads go on.
        """
        self._servers.close()

    def _absolute_url(self, path_or_url: str) -> str:
        return self.base_url + path_or_url if path_or_url.startswith("/") else path_or_url

    def _attempt(self, attempt: Callable[[], Answer], retry: bool) -> Answer:
        failures = 0
        give_up_at = time.monotonic() + self._attempts_seconds_max
        while True:
            url, interruptions = self.base_url, self._interruptions
            try:
                return attempt()
            except (ApiError, Unreachable) as error:
                failures += 1
                is_cut_off = interruptions != self._interruptions
                has_moved = not is_cut_off and self._leave_server(url, error)
                final = isinstance(error, WayClosed)
                final |= isinstance(error, ApiError) and not error.is_transient
                spent = failures >= self._attempts_max or time.monotonic() >= give_up_at
                if final or not retry or spent:
                    raise
            if not has_moved or failures >= len(self._servers):
                self._sleep(backoff_seconds(failures))

    def _leave_server(self, url: str, error: ApiError | Unreachable) -> bool:
        """Use another server than `url` if the server failed; return whether the server changed.

        An error that is the answer of a working server changes nothing.
        """
        if isinstance(error, ApiError) and error.status not in MOVING_STATUSES:
            return False
        return self._servers.leave(url)

    @contextlib.contextmanager
    def _follow_redirects(self, url: str) -> Iterator[HTTPResponse]:
        for _ in range(REDIRECTS_MAX + 1):
            with self._exchange("GET", url, None, {}) as answer:
                if answer.status not in (301, 302, 303, 307, 308):
                    _raise_for_status(answer)
                    yield answer
                    return
                url = urljoin(url, answer.headers.get("Location", ""))
        raise Unreachable(f"{urlsplit(url).netloc} redirected more than {REDIRECTS_MAX} times")

    @contextlib.contextmanager
    def _exchange(
        self,
        method: str,
        url: str,
        body: bytes | BinaryIO | None,
        headers: Mapping[str, str],
        timeout_seconds: float | None = None,
    ) -> Iterator[HTTPResponse]:
        """Send a request and yield the answer, whose body the caller reads within the block.

        The status is not checked, redirects are not followed, and nothing is repeated, also if a
        reused connection turns out to be closed. The token is only sent to the transport's own
        origin. `on_silence` may be called. If the body of the answer is not read completely, the
        connection is closed, else it is kept for later requests to the own origin. Raise
        Unreachable without an answer, also for an OSError of reading a `body` to send. Errors while
        the caller reads the answer are not translated. Raise ValueError for an invalid URL.
        """
        from http.client import HTTPException

        own = self._servers.find(url)
        target, proxy_headers = request_target(url)
        sent = {**headers, **proxy_headers}
        if own is None:
            sent["Connection"] = "close"
        elif self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        timeout = timeout_seconds or self.timeout_seconds
        with use_connection(url, timeout, own) as connection:
            try:
                if own is not None:
                    self._servers.connect(connection, timeout)
                connection.request(method, target, body, sent)
                self._report_silence(connection, timeout)
                answer = connection.getresponse()
            except (OSError, HTTPException) as error:
                raise _unreachable_error(url, error) from error
            _check_proxy(url, answer)
            with answer:
                yield answer
                if not answer.isclosed() or answer.will_close:
                    connection.close()

    def _report_silence(self, connection: HTTPConnection, timeout_seconds: float) -> None:
        """Call `on_silence` if no byte of the answer arrives within `silence_seconds`.

        Return as soon as a byte arrives, or after the call. Nothing is read, and no error is raised
        for the silence. Errors of `on_silence` are passed on. Do nothing without `on_silence`, or
        if the request's timeout is not longer.
        """
        if self.on_silence is None or self._silence_seconds >= timeout_seconds:
            return
        if connection.sock is not None and not is_readable(
            connection.sock.fileno(), self._silence_seconds
        ):
            self.on_silence("://".join(urlsplit(self.base_url)[:2]))


def _unreachable_error(url: str, error: Exception) -> Unreachable:
    failure = describe_failure(url, error)
    return WayClosed(failure.text) if failure.is_final else Unreachable(failure.text)


def _check_proxy(url: str, answer: HTTPResponse) -> None:
    """Raise WayClosed if a proxy, not the server, refuses the login of a plain HTTP request."""
    is_refusal = answer.status == LOGIN_REFUSED and url.startswith("http:")
    if is_refusal and find_proxy(url) is not None:
        answer.close()
        raise WayClosed(login_refused_text(url))


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
        # Python's client raises no error for a cut answer that is read with a size.
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
