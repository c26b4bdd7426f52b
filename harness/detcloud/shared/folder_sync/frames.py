"""The messages between the two ends of a synchronised folder, over a reliable stream.

A frame is the length of its fields, the length of its content, the fields as a JSON object, and the
content. The other end is not trusted: lengths are bounded before anything is read.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from detcloud.shared.errors import DetcloudError

FIELDS_BYTES_MAX = 1024 * 1024
CONTENT_BYTES_MAX = 256 * 1024
"""The most bytes of content in a frame. A larger file has several frames."""
_LENGTHS = struct.Struct(">II")


class FolderLinkBroken(DetcloudError):
    """The stream between the folders ended, or an invalid frame arrived."""


def send_frame(connection: socket.socket, fields: dict[str, Any], content: bytes = b"") -> None:
    """Send a frame.

    Raises:
        FolderLinkBroken: the stream has ended.
    """
    encoded = json.dumps(fields).encode()
    try:
        connection.sendall(_LENGTHS.pack(len(encoded), len(content)) + encoded + content)
    except OSError as error:
        raise FolderLinkBroken(f"the connection broke: {error}") from None


def receive_frame(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Wait for a frame without a time limit, and return the fields and the content.

    Raises:
        FolderLinkBroken: the stream has ended, a length exceeds its limit, or the fields are no
            JSON object.
    """
    fields_length, content_length = _LENGTHS.unpack(_receive(connection, _LENGTHS.size))
    if fields_length > FIELDS_BYTES_MAX or content_length > CONTENT_BYTES_MAX:
        raise FolderLinkBroken("the other end sent a frame above the limit")
    encoded = _receive(connection, fields_length)
    try:
        fields = json.loads(encoded)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise FolderLinkBroken("the other end sent an invalid frame")
    return fields, _receive(connection, content_length)


def _receive(connection: socket.socket, count: int) -> bytes:
    """Receive exactly `count` bytes. Raise FolderLinkBroken if the stream ends before."""
    parts: list[bytes] = []
    while count:
        try:
            part = connection.recv(min(count, CONTENT_BYTES_MAX))
        except OSError as error:
            raise FolderLinkBroken(f"the connection broke: {error}") from None
        if not part:
            raise FolderLinkBroken("the connection has ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
