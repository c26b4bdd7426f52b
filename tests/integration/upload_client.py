"""A client that notes its uploads, and calls a function of the test before each upload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from detcloud.client import Client
from detcloud.client.checkpoint_upload import upload_checkpoint
from detcloud.client.upload import PartReader
from detcloud.shared.http import Transport
from detcloud.shared.upload_parts import SIGNED_PART_BYTES


@dataclass(frozen=True)
class SentBody:
    """An upload of a file or a part."""

    url: str
    number: int | None
    """The number of the part, from 1. None for a whole file."""
    headers: Mapping[str, str]
    content: BinaryIO
    """The open file, at the beginning of the sent bytes."""


class NotingTransport(Transport):
    """A transport that notes uploads in `sent`. `before_upload` may raise an error."""

    def __init__(self, base_url: str, token: str | None, part_bytes: int) -> None:
        super().__init__(base_url, token, sleep=lambda _: None)
        self.sent: list[SentBody] = []
        self.before_upload: Callable[[SentBody], None] = lambda body: None
        self._part_bytes = part_bytes

    def upload(self, path_or_url: str, file: BinaryIO, size: int, **options: Any) -> None:
        is_part = isinstance(file, PartReader)
        number = file.tell() // self._part_bytes + 1 if is_part else None
        body = SentBody(path_or_url, number, options["headers"], file)
        self.before_upload(body)
        super().upload(path_or_url, file, size, **options)
        self.sent.append(body)

    @property
    def sent_numbers(self) -> list[int | None]:
        """The numbers of the sent parts, and None for each whole file."""
        return [body.number for body in self.sent]


class UploadClient(Client):
    """A client whose transport is `uploads`. `part_bytes` is the size of the parts of files."""

    def __init__(self, url: str, token: str, part_bytes: int = SIGNED_PART_BYTES) -> None:
        super().__init__(url, token)
        self.uploads = NotingTransport(self.url, token, part_bytes)
        self.http = self.uploads

    def upload_one_after_another(self, folder: Path) -> dict[str, Any]:
        """Upload a folder as a checkpoint of trial 1, and begin no file or part before the last."""
        return upload_checkpoint(
            self, 1, folder, steps_completed=None, metadata={}, uploads_at_once=1
        )
