"""A function of Cloud Run as an ASGI application, for uvicorn: what all of them but the API share.

Who calls is checked by Cloud Run, before a request comes here: a service may be invoked only by the
accounts that its IAM policy names, and nothing here looks for a second proof.
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

# What the stack gives a function where it says nothing else.
SECONDS_MAX = 60

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Cloud Run logs an answer of 5xx as an error, which rings the alarm; that it is too early is none.
DONE, REFUSED, AGAIN, FAILED = 204, 400, 429, 500


@dataclass(frozen=True)
class Call:
    """A call of a function: its headers, whose names are in lower case, and `left_ms`, how long
    until Cloud Run gives it up.
    """

    headers: Mapping[str, str]
    left_ms: Callable[[], int]


Handler = Callable[[Call], int]
"""Does what a call asks for and returns the status of its answer. Eventarc and the
scheduler repeat an event unless the status is 2xx.
"""

Pause = Callable[[Mapping[str, str]], float]
"""Says for how many seconds a call of these headers is to wait before it is handled."""


class Function:
    """The ASGI application of a function. `threads` calls are handled concurrently; another waits,
    or, where it is `one_at_a_time`, is answered at once: the one that runs does its work too. What
    waits for its `pause` holds no thread.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        handler: Handler,
        *,
        threads: int = 8,
        one_at_a_time: bool = False,
        pause: Pause = lambda headers: 0.0,
    ) -> None:
        self._telemetry = telemetry
        self._handler = handler
        self._pause = pause
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="call")
        self._turn = threading.Lock() if one_at_a_time else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
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
                await asyncio.sleep(seconds_early)
            run = copy_context().run
            loop = asyncio.get_running_loop()
            status = await loop.run_in_executor(self._executor, run, self._answer, call)
        start = {"type": "http.response.start", "status": status, "headers": []}
        await send(start)
        await send({"type": "http.response.body", "body": b""})

    def _answer(self, call: Call) -> int:
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
    """Return the headers of a request, by their names in lower case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
