"""HTTP connections of an embedded cluster's server, with limits on idle and slow connections.

- A connection is waiting between two requests and until the headers of a request are complete. New
  and partly received headers must be complete within HEAD_SECONDS_MAX. If more than WAITING_MAX
  connections wait, the longest-waiting connection is closed. Strangers come first: connections
  without an earlier request that had a valid token or signature.
- If the server waits for the body of more than STRANGERS_MAX requests of unknown callers, the
  connection of the oldest request is closed. The API limits the time of each body.
- A client must read its response within WRITE_SECONDS_MAX, plus the time of the unsent bytes at
  WRITE_BYTES_PER_SECOND. Otherwise the connection is closed.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS_MAX = 15.0
WAITING_MAX = 192
STRANGERS_MAX = 96
WRITE_SECONDS_MAX = 30.0
WRITE_BYTES_PER_SECOND = 16 * 1024
# The parser limits only the length of incomplete lines. Passing the data in small pieces applies
# this limit to lines that arrive at once.
PIECE_BYTES = 16 * 1024


class Connection(H11Protocol):
    """A connection with limits. All connections of a process share `waiting` and `answering`."""

    waiting: dict["Connection", None] = {}  # noqa: RUF012
    """The connections that wait for a request, the longest-waiting first."""
    answering: dict["Connection", None] = {}  # noqa: RUF012
    """The connections with complete headers and without a complete response, oldest first."""

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
            # The data is a part of the headers, or the rest of a body that the application skipped.
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
        """Return whether a request with complete headers has no complete response yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _is_known(self) -> bool:
        """Return whether the API has found the current request's token or signature valid.

        Return False without a current request.
        """
        state = self.cycle.scope.get("state", {}) if self.cycle is not None else {}
        return "principal" in state or "grant" in state

    def _is_unknown_caller(self) -> bool:
        """Return whether the server waits for more of the body from an unknown caller.

        Return False while reading is paused: the server itself is then busy with received data, for
        example with the check of the token.
        """
        is_awaited = self.cycle is not None and self.cycle.more_body and not self.flow.read_paused
        return is_awaited and not self._is_known()

    def _start_waiting(self) -> None:
        """Add this connection to `waiting`.

        If more than WAITING_MAX connections wait, close the longest-waiting one, strangers first.
        """
        self.waiting[self] = None
        if len(self.waiting) > WAITING_MAX:
            strangers = (each for each in self.waiting if not each._was_known)
            longest = next(strangers, next(iter(self.waiting)))
            longest._stop_waiting()
            longest.transport.abort()

    def _start_answering(self) -> None:
        """Add this connection to `answering`.

        If the server waits for more than STRANGERS_MAX unknown callers, close the oldest one.
        """
        self.answering[self] = None
        if len(self.answering) <= STRANGERS_MAX:
            return
        strangers = [each for each in self.answering if each._is_unknown_caller()]
        if len(strangers) > STRANGERS_MAX:
            self.answering.pop(strangers[0])
            strangers[0].transport.abort()

    def _start_head_timeout(self) -> None:
        """Close the connection after HEAD_SECONDS_MAX. A timeout that is running stays."""
        if self._head_task is None:
            self._head_task = self.loop.call_later(HEAD_SECONDS_MAX, self.transport.abort)

    def _stop_waiting(self) -> None:
        """Remove this connection from `waiting`, and cancel the timeout of the headers."""
        self.waiting.pop(self, None)
        if self._head_task is not None:
            self._head_task.cancel()
            self._head_task = None

    def _start_write_timeout(self) -> None:
        """Start the timeout of the unsent response bytes. A timeout that is running stays."""
        if self._write_task is None:
            waiting_bytes = self.transport.get_write_buffer_size()
            seconds = WRITE_SECONDS_MAX + waiting_bytes / WRITE_BYTES_PER_SECOND
            self._write_task = self.loop.call_later(seconds, self._end_writing)

    def _stop_write_timeout(self) -> None:
        if self._write_task is not None:
            self._write_task.cancel()
            self._write_task = None

    def _end_writing(self) -> None:
        """Close the connection if response bytes are still unsent at the end of the timeout."""
        self._write_task = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()
