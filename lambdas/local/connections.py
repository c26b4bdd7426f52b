"""Connections of an embedded cluster's server, with limits on those that only hold it.

A connection waits that is between two requests, or whose request has not come as far as the end of
its headers. It may wait for HEAD_SECONDS_MAX; of more than WAITING_MAX, the one that waits longest
is closed, strangers first: nobody whose token or signature was found good has called on them.

A stranger's request is one whose body is waited for and whose caller is not known: of more than
STRANGERS_MAX, the oldest is closed. How long a body may take is bounded where it is read.

A client must take its answer: one that is ready waits for WRITE_SECONDS_MAX and the
time that its bytes take at WRITE_BYTES_PER_SECOND, and then the connection is closed.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS_MAX = 15.0
WAITING_MAX = 192
STRANGERS_MAX = 96
WRITE_SECONDS_MAX = 30.0
WRITE_BYTES_PER_SECOND = 16 * 1024
# The parser bounds lines that have not ended: one that comes at once as those that come in parts.
PIECE_BYTES = 16 * 1024


class Connection(H11Protocol):
    """One connection. `waiting` are all connections that wait, the longest first; `answering` all
    whose request has come, the oldest first.
    """

    waiting: dict["Connection", None] = {}  # noqa: RUF012
    answering: dict["Connection", None] = {}  # noqa: RUF012

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_task: asyncio.TimerHandle | None = None
        self._write_task: asyncio.TimerHandle | None = None
        self._was_known = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_waiting()
        self._start_head_timeout()

    def data_received(self, data: bytes) -> None:
        was_answering = self._is_answering()
        for begin in range(0, len(data), PIECE_BYTES):
            if not self.transport.is_closing():
                super().data_received(data[begin : begin + PIECE_BYTES])
        if self._is_answering():
            self._stop_waiting()
            if not was_answering:
                self._start_answering()
        else:
            # Part of a head, or the rest of a body that nobody read.
            self._start_head_timeout()

    def on_response_complete(self) -> None:
        self._was_known = self._was_known or self._is_known()
        self.answering.pop(self, None)
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._start_write_timeout()
        if self._is_answering():
            self._start_answering()
        elif not self.transport.is_closing():
            self._start_waiting()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_timeout()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_write_timeout()
        self.answering.pop(self, None)
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _is_known(self) -> bool:
        """Whether the present request showed a good token or signature, as the API notes it."""
        state = self.cycle.scope.get("state", {}) if self.cycle is not None else {}
        return "principal" in state or "grant" in state

    def _is_unknown_caller(self) -> bool:
        """Whether the server waits for an unknown caller.

        While reading is paused, because a thread checks the token of what was received, the server
        does not wait for the caller.
        """
        is_awaited = self.cycle is not None and self.cycle.more_body and not self.flow.read_paused
        return is_awaited and not self._is_known()

    def _start_waiting(self) -> None:
        self.waiting[self] = None
        if len(self.waiting) > WAITING_MAX:
            strangers = (each for each in self.waiting if not each._was_known)
            longest = next(strangers, next(iter(self.waiting)))
            longest._stop_waiting()
            longest.transport.abort()

    def _start_answering(self) -> None:
        self.answering[self] = None
        if len(self.answering) <= STRANGERS_MAX:
            return
        strangers = [each for each in self.answering if each._is_unknown_caller()]
        if len(strangers) > STRANGERS_MAX:
            self.answering.pop(strangers[0])
            strangers[0].transport.abort()

    def _start_head_timeout(self) -> None:
        if self._head_task is None:
            self._head_task = self.loop.call_later(HEAD_SECONDS_MAX, self.transport.abort)

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)
        if self._head_task is not None:
            self._head_task.cancel()
            self._head_task = None

    def _start_write_timeout(self) -> None:
        if self._write_task is None:
            waiting_bytes = self.transport.get_write_buffer_size()
            seconds = WRITE_SECONDS_MAX + waiting_bytes / WRITE_BYTES_PER_SECOND
            self._write_task = self.loop.call_later(seconds, self._end_writing)

    def _stop_write_timeout(self) -> None:
        if self._write_task is not None:
            self._write_task.cancel()
            self._write_task = None

    def _end_writing(self) -> None:
        self._write_task = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()
