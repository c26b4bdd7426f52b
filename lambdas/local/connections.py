"""Connections of an embedded cluster's server, with limits on those without a request.

A connection waits that is between two requests, or whose request has not come as far as the end of
its headers. It may wait for HEAD_SECONDS_MAX; of more than WAITING_MAX, the one that waits longest
is closed. A request that is being answered has no limit here: its body is bounded where it is read.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS_MAX = 15.0
WAITING_MAX = 256


class Connection(H11Protocol):
    """One connection. `waiting` are all connections that wait, the longest first."""

    waiting: dict["Connection", None] = {}  # noqa: RUF012

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_task: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_waiting()
        self._start_head_timeout()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._stop_waiting()
        else:
            # Part of a head, or the rest of a body that nobody read.
            self._start_head_timeout()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering() and not self.transport.is_closing():
            self._start_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_waiting(self) -> None:
        self.waiting[self] = None
        if len(self.waiting) > WAITING_MAX:
            longest = next(iter(self.waiting))
            longest._stop_waiting()
            longest.transport.abort()

    def _start_head_timeout(self) -> None:
        if self._head_task is None:
            self._head_task = self.loop.call_later(HEAD_SECONDS_MAX, self.transport.abort)

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)
        if self._head_task is not None:
            self._head_task.cancel()
            self._head_task = None
