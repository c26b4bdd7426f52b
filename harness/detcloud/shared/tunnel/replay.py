"""The numbered frames that the peer may not have received, for the resumption of a session."""

from __future__ import annotations

from collections import deque

from detcloud.shared.tunnel.frames import ProtocolError

# An estimate of the memory of a stored frame without its bytes.
FRAME_OVERHEAD_BYTES = 64


class ReplayBuffer:
    """The numbered frames of a session that are not acknowledged, in order.

    The offset of a frame is the number of bytes of all earlier numbered frames of the session.
    Acknowledged offsets are boundaries between frames, because receivers discard partial frames
    when a connection breaks.
    """

    def __init__(self) -> None:
        # The frames that were sent on the current connection, then the frames to send again.
        self._sent: deque[bytes] = deque()
        self._unsent: deque[bytes] = deque()
        self._acked = 0
        self._end = 0

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory that the stored frames need."""
        frames = len(self._sent) + len(self._unsent)
        return self._end - self._acked + FRAME_OVERHEAD_BYTES * frames

    def append(self, frame: bytes) -> None:
        """Store a new frame that is sent now.

        All stored frames must have been sent on the current connection: `next_repeated` returned
        None.
        """
        assert not self._unsent
        self._sent.append(frame)
        self._end += len(frame)

    def acknowledge(self, offset: int) -> None:
        """Delete the frames before `offset`. An earlier acknowledged offset deletes nothing.

        Raise ProtocolError if `offset` is no boundary of a frame, or exceeds the frames that were
        sent on the current connection.
        """
        while self._acked < offset:
            if not self._sent:
                raise ProtocolError(
                    f"the peer acknowledged offset {offset}; sent are {self._acked} bytes"
                )
            self._delete_first(offset)

    def rewind(self, offset: int) -> None:
        """Begin a new connection to a peer that has received all frames before `offset`.

        Delete these frames. The other stored frames then wait to be sent again. Raise ProtocolError
        if `offset` is before the deleted frames, after the last frame, or inside a frame.
        """
        if not self._acked <= offset <= self._end:
            raise ProtocolError(
                f"the peer resumes at offset {offset}; expected {self._acked} to {self._end}"
            )
        self._sent.extend(self._unsent)
        self._unsent.clear()
        self.acknowledge(offset)
        self._sent, self._unsent = self._unsent, self._sent

    def next_repeated(self) -> bytes | None:
        """Return the next frame to send again on this connection. Return None after the last."""
        if not self._unsent:
            return None
        frame = self._unsent.popleft()
        self._sent.append(frame)
        return frame

    def _delete_first(self, offset: int) -> None:
        """Delete the first frame. Raise ProtocolError if `offset` is inside the frame."""
        end = self._acked + len(self._sent[0])
        if end > offset:
            raise ProtocolError(f"the peer acknowledged offset {offset}, inside a frame")
        self._sent.popleft()
        self._acked = end
