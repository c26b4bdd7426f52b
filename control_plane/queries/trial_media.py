"""Query of the media in a trial's TensorBoard event files: images, histograms, texts and audio.

The files are read in parts: a request reads a bounded number of bytes and records, and its cursor
continues there. Media are in the order of the files.
"""

import base64
import math
from collections.abc import Iterator
from operator import itemgetter

from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles, NoSuchFile
from control_plane.errors import Code, RequestError
from control_plane.metrics.event_records import Media, RecordReader, RecordsDamaged, media_of
from control_plane.queries.answer import Answer
from control_plane.queries.checkpoint_files import store_error
from control_plane.queries.event_files import list_stored_parts, open_event_folder, readable_path
from control_plane.queries.pages import PageRequest, encode_cursor
from control_plane.services import Services
from detcloud.shared.event_parts import EventFile, assemble_files, only_grows

# The most bytes and records that a request reads.
READ_BYTES_MAX = 16 * 1024 * 1024
RECORDS_MAX = 20_000
# A request ends after the item that reaches this size of all contents. Answers of functions have at
# most 6 MB, and base64 adds a third.
CONTENT_BYTES_MAX = 2 * 1024 * 1024
# The largest content that an answer contains.
ITEM_BYTES_MAX = 2 * 1024 * 1024


class MediaItem(Answer):
    """An image, a histogram, a text or an audio clip.

    `kind` is `image`, `histogram`, `text` or `audio`. `content` is a file in base64 of the type
    `content_type`. It is "" for a file of more than ITEM_BYTES_MAX, and for a type that browsers do
    not show. `buckets` are lower limit, upper limit and count of each bucket of a histogram.
    """

    kind: str
    tag: str
    step: int
    time_ms: int
    size: int
    content_type: str
    content: str
    text: str
    buckets: list[tuple[float, float, float]]


class MediaPage(Answer):
    """A page of a trial's media.

    `read_bytes` of `total_bytes` of the event files were read up to the end of the page.
    `damages` names the files of the page that end with damaged bytes.
    """

    items: list[MediaItem]
    next_cursor: str | None
    read_bytes: int
    total_bytes: int
    damages: list[str]


def list_media(services: Services, trial_id: int, page: PageRequest) -> MediaPage:
    """Return the next media in the trial's event files. A page may be empty although more follow.

    A file whose last record is not complete yet is read up to that record.

    Raises:
        RequestError: not_found, if the trial does not exist, or a file was deleted meanwhile;
            invalid, for a wrong cursor; conflict, for more than `event_file_parts_max` stored
            parts, or if the cluster may not call the store's endpoints; unavailable, if the store
            does not answer.
    """
    after = page.start_after("media", (str, int))
    path, offset = (str(after[0]), int(after[1])) if after else ("", 0)
    store, parts = open_event_folder(services, trial_id)
    stored = list_stored_parts(services, store, parts, trial_id)
    named = [(readable_path(file.path), file) for file in assemble_files(stored)]
    named.sort(key=itemgetter(0))
    files = [(name, file) for name, file in named if only_grows(file.path)]
    reading = _Reading(store, "/".join(parts), page.limit)
    read_bytes, cursor = 0, None
    for name, file in files:
        if name < path:
            read_bytes += file.size
            continue
        start = offset if name == path else 0
        end = reading.read(file, name, start)
        read_bytes += min(end, file.size)
        if reading.is_full:
            cursor = encode_cursor("media", (name, end))
            break
        read_bytes += file.size - min(end, file.size)
    return MediaPage(
        items=reading.items,
        next_cursor=cursor,
        read_bytes=read_bytes,
        total_bytes=sum(file.size for _, file in files),
        damages=reading.damages,
    )


class _Reading:
    """The media that a request has read so far."""

    def __init__(self, store: CheckpointFiles, folder: str, items_max: int) -> None:
        self._store = store
        self._folder = folder
        self._items_max = items_max
        self._bytes = self._records = self._content = 0
        self.items: list[MediaItem] = []
        self.damages: list[str] = []

    @property
    def is_full(self) -> bool:
        """Whether the request has read enough."""
        return (
            self._bytes >= READ_BYTES_MAX
            or self._records >= RECORDS_MAX
            or self._content >= CONTENT_BYTES_MAX
            or len(self.items) >= self._items_max
        )

    def read(self, file: EventFile, name: str, start: int) -> int:
        """Read records of a file from an offset on. Return the offset behind the last record.

        Stop if the reading is full. Damaged bytes end the file. Raises RequestError.
        """
        reader = RecordReader(start)
        try:
            for block in self._blocks(file, start):
                self._bytes += len(block)
                for record in reader.feed(block):
                    self._records += 1
                    self._add(media_of(record))
                    if self.is_full:
                        return reader.offset
                # A record that is skipped may be longer than all that a request reads.
                if self.is_full and reader.offset > start:
                    return reader.offset
        except RecordsDamaged as error:
            self.damages.append(f"{name}, {error}")
        return reader.offset

    def _add(self, found: list[Media]) -> None:
        for media in found:
            item = _item(media)
            self._content += len(item.content) + len(item.text) + 24 * len(item.buckets)
            self.items.append(item)

    def _blocks(self, file: EventFile, start: int) -> Iterator[bytes]:
        """Yield the bytes of a file from an offset on. Raises RequestError."""
        first = 0
        for part in file.parts:
            skipped = max(0, start - first)
            first += part.size
            if skipped >= part.size:
                continue
            try:
                for block in self._store.open_file(f"{self._folder}/{part.key}").blocks:
                    if skipped < len(block):
                        yield block[skipped:]
                    skipped = max(0, skipped - len(block))
            except NoSuchFile:
                text = f"the file {readable_path(file.path)} is gone"
                raise RequestError(Code.NOT_FOUND, text) from None
            except OSError as error:
                raise store_error(error) from None


def _item(media: Media) -> MediaItem:
    """Return the answer about a medium."""
    is_sent = bool(media.content_type) and len(media.content) <= ITEM_BYTES_MAX
    return MediaItem(
        kind=media.kind,
        tag=media.tag,
        step=media.step,
        time_ms=media.time_ms,
        size=len(media.content),
        content_type=media.content_type,
        content=base64.b64encode(media.content).decode() if is_sent else "",
        text=media.text,
        buckets=[bucket for bucket in media.buckets if all(map(math.isfinite, bucket))],
    )
