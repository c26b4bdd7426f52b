"""Bytes of a hostile machine to the user's end of a synchronised folder."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcloud.client.trial_folder import TrialFolder
from detcloud.shared.folder_sync.folder import FileEntry, FileRefused
from detcloud.shared.folder_sync.frames import (
    CONTENT_BYTES_MAX,
    FIELDS_BYTES_MAX,
    FolderLinkBroken,
)
from detcloud.shared.folder_sync.synced_names import SyncedNames

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
fields = st.dictionaries(st.sampled_from(("entries", "part", "done", "error", "changed")), values)
frames = st.binary(max_size=60) | st.builds(
    lambda one, content: encode_frame(json.dumps(one).encode(), content),
    fields | values,
    st.binary(max_size=20),
)


def encode_frame(encoded: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">II", len(encoded), len(content)) + encoded + content


def open_answer(received: bytes) -> tuple[TrialFolder, socket.socket]:
    """Return the user's end of a stream on which the machine sends bytes and then ends."""
    user, machine = socket.socketpair()
    machine.sendall(received)
    machine.shutdown(socket.SHUT_WR)
    return TrialFolder(user, file_bytes_max=1_000), machine


def read_all(blocks: Iterator[bytes]) -> bytes:
    return b"".join(blocks)


@given(st.lists(frames, max_size=5))
def test_any_bytes_are_an_answer_or_an_error(parts: list[bytes]) -> None:
    for number in range(4):
        folder, machine = open_answer(b"".join(parts))
        with machine, folder._connection:
            try:
                match number:
                    case 0:
                        folder.scan(SyncedNames())
                    case 1:
                        folder.locate()
                    case 2:
                        folder.wait_for_change(0)
                    case 3:
                        content = read_all(folder.fetch("a", FileEntry("0" * 64, 5, False)))
                        assert len(content) <= 5
            except (FolderLinkBroken, FileRefused):
                pass


@pytest.mark.parametrize(
    ("fields_length", "content_length"),
    [(FIELDS_BYTES_MAX + 1, 0), (2, CONTENT_BYTES_MAX + 1), (2**32 - 1, 2**32 - 1)],
)
def test_frames_above_the_limits_end_the_connection(
    fields_length: int, content_length: int
) -> None:
    folder, machine = open_answer(struct.pack(">II", fields_length, content_length) + b"{}")
    with machine, folder._connection, pytest.raises(FolderLinkBroken, match="above the limit"):
        folder.locate()
