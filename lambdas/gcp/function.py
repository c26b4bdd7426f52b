"""The ASGI application of a Cloud Run function, which all functions except the API share.

Cloud Run checks the caller before a request arrives here: only the accounts in the service's IAM
policy may invoke the service. Therefore this module checks no further proof.
"""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from lambdas.gcp.telemetry import Telemetry

# The timeout of a function whose stack sets no DETCLOUD_TIMEOUT_SECONDS.
SECONDS_MAX = 60

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Cloud Run logs a status of 5xx as an error, which triggers the alarm. A call that comes too early
# is not an error, so AGAIN is 429.
DONE, REFUSED, AGAIN, FAILED = 204, 400, 429, 500


@dataclass(frozen=True)
class Call:
    """A call of a function."""

    headers: Mapping[str, str]
    """The headers of the request, with names in lower case."""
    left_ms: Callable[[], int]
    """Returns the time in ms until Cloud Run aborts the request."""


Handler = Callable[[Call], int]
"""Handles a call and returns the HTTP status. Eventarc and the scheduler repeat an event unless the
status is 2xx.
"""

Pause = Callable[[Mapping[str, str]], float]
"""Returns the seconds to wait before a call with these headers is handled."""


class Function:
    """The ASGI application of a function, which handles POST requests in threads.

    Args:
        telemetry: the logs of the function.
        handler: handles a call in a thread. An exception is logged and answered with FAILED.
        threads: the number of calls that run at the same time. Further calls wait for a thread.
        one_at_a_time: whether only one call may run. Then another call is answered with DONE at
            once, because the running call does its work, too.
        pause: returns the seconds that a call waits before it gets a thread.
        sleep: pauses for a number of seconds.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        handler: Handler,
        *,
        threads: int = 8,
        one_at_a_time: bool = False,
        pause: Pause = lambda headers: 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._telemetry = telemetry
        self._handler = handler
        self._pause = pause
        self._sleep = sleep
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="call")
        self._turn = threading.Lock() if one_at_a_time else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a POST request, and send the handler's status with an empty body.

        The body of the request is not read. Answer other methods with 405. Ignore scopes that are
        not HTTP.
        """
        if scope["type"] != "http":
            return
        begun = time.monotonic()
        seconds = float(os.environ.get("DETCLOUD_TIMEOUT_SECONDS") or SECONDS_MAX)
        status = 405
        if scope["method"] == "POST":
            headers = header_map(scope)
            self._telemetry.begin_request(headers)
            call = Call(headers, lambda: int((begun + seconds - time.monotonic()) * 1000))
            if (seconds_early := self._pause(headers)) > 0:
                await self._sleep(seconds_early)
            run = copy_context().run
            loop = asyncio.get_running_loop()
            status = await loop.run_in_executor(self._executor, run, self._answer, call)
        start = {"type": "http.response.start", "status": status, "headers": []}
        await send(start)
        await send({"type": "http.response.body", "body": b""})

    def _answer(self, call: Call) -> int:
        """Run the handler in the current thread, and return the HTTP status.

        Log an exception and return FAILED. Return DONE if the function runs one call at a time and
        a call is running.
        """
        if self._turn is not None and not self._turn.acquire(blocking=False):
            self._telemetry.log_line("already running")
            return DONE
        try:
            return self._handler(call)
        except Exception:
            self._telemetry.log_failure("a call failed")
            return FAILED
        finally:
            if self._turn is not None:
                self._turn.release()


def header_map(scope: Scope) -> dict[str, str]:
    """Return the headers of an ASGI request by name, in lower case.

    Of repeated headers, the last value is returned.
    """
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def caller_scope(scope: Scope) -> Scope:
    """Return the ASGI scope of an HTTP request without the changes of Google's front.

    The client is the client of the front. The header `traceparent` is removed: the front replaces
    the caller's span and the sampled flag, and adds a trace to requests without a trace.
    """
    kept = [(name, value) for name, value in scope["headers"] if name != b"traceparent"]
    client = client_address(header_map(scope), scope.get("client"))
    return {**scope, "headers": kept, "client": client}


def client_address(
    headers: Mapping[str, str], peer: tuple[str, int] | None
) -> tuple[str, int] | None:
    """Return the address of a request's client, with port 0.

    Google's front appends the client's address to X-Forwarded-For. Earlier addresses are claims of
    the client and are ignored. Return `peer` unchanged if the header has no address.

    Args:
        headers: the request's headers, with names in lower case.
        peer: the address and port at the other end of the connection, if known.
    """
    address = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    return (address, 0) if address else peer
