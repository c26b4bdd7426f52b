"""Records of TensorBoard event files: framing, images, histograms, texts and audio.

Trials choose the bytes of event files, so that no length and no field is trusted. Scalars are left
out, because metrics are reported to the cluster itself. The formats are those of TensorBoard's
`event.proto`, `summary.proto` and `tensor.proto`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

RECORD_BYTES_MAX = 8 * 1024 * 1024
"""The largest record whose content is read. Larger records are skipped."""
TEXT_CHARACTERS_MAX = 50_000
"""The characters of a text that are kept."""
BUCKETS_MAX = 1_000
"""The most buckets of a histogram that are kept."""
_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
_CRC_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
# The first bytes of the images that browsers show.
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)
_DT_FLOAT, _DT_DOUBLE = 1, 2


class RecordsDamaged(ValueError):
    """The bytes at an offset are no record. The text has the offset and the reason."""


@dataclass(frozen=True)
class Media:
    """An image, a histogram, a text or an audio clip of a trial."""

    kind: str
    """`image`, `histogram`, `text` or `audio`."""
    tag: str
    step: int
    time_ms: int
    content_type: str = ""
    """The media type of `content`, for images and audio. "": not shown by browsers."""
    content: bytes = b""
    """The file of an image or of audio."""
    text: str = ""
    buckets: tuple[tuple[float, float, float], ...] = ()
    """The buckets of a histogram: lower limit, upper limit and count."""


@dataclass(frozen=True)
class _Field:
    """A field of an encoded protocol buffer message."""

    number: int
    bits: int = 0
    """The value of a varint, or the bits of a fixed number."""
    content: bytes = b""
    """The bytes of a text or a message."""


@dataclass
class RecordReader:
    """Splits the blocks of an event file into records."""

    offset: int = 0
    """The offset of the next record in the file."""
    _rest: bytearray = field(default_factory=bytearray)
    _skipped: int = 0
    """The bytes of a large record that are still to come."""

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Yield the content of the records that the block completes, without skipped records.

        `offset` is behind a record when the record is yielded, and behind a large record as soon as
        its length is known. Raises RecordsDamaged if the bytes are no record.
        """
        self._rest += block
        while True:
            if self._skipped:
                count = min(self._skipped, len(self._rest))
                del self._rest[:count]
                self._skipped -= count
                if self._skipped:
                    return
            if len(self._rest) < _HEADER.size:
                return
            length = self._read_length()
            whole = _HEADER.size + length + _FOOTER_BYTES
            if length > RECORD_BYTES_MAX:
                self._skipped = whole
                self.offset += whole
                continue
            if len(self._rest) < whole:
                return
            content = bytes(self._rest[_HEADER.size : _HEADER.size + length])
            del self._rest[:whole]
            self.offset += whole
            yield content

    def _read_length(self) -> int:
        """Return the length of the next record. Raises RecordsDamaged for a wrong checksum."""
        length, checksum = _HEADER.unpack_from(self._rest)
        if checksum != masked_crc(bytes(self._rest[:8])):
            raise RecordsDamaged(f"byte {self.offset}: the checksum of the record's length differs")
        return int(length)


def masked_crc(content: bytes) -> int:
    """Return the masked CRC-32C of a record's length."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CRC_POLYNOMIAL if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def media_of(record: bytes) -> list[Media]:
    """Return the media of a record. Empty for scalars, and for a record that cannot be decoded."""
    try:
        return list(_read_event(record))
    except (ValueError, IndexError, struct.error, OverflowError):
        return []


def _read_event(record: bytes) -> Iterator[Media]:
    time_ms = step = 0
    summaries = []
    for part in _fields(record):
        match part.number:
            case 1:
                time_ms = int(1000 * _double(part.bits))
            case 2:
                step = part.bits
            case 5:
                summaries.append(part.content)
    for summary in summaries:
        for part in _fields(summary):
            if part.number == 1 and (media := _read_value(part.content, step, time_ms)):
                yield media


def _read_value(value: bytes, step: int, time_ms: int) -> Media | None:
    """Return the media of a value of a summary. None for a scalar and for another kind."""
    parts = {part.number: part for part in _fields(value)}
    tag = parts[1].content.decode("utf-8", "replace") if 1 in parts else ""
    about = (tag[:1000], step, time_ms)
    if 4 in parts:
        return _image(*about, _last_content(parts[4].content, 4))
    if 5 in parts:
        return Media("histogram", *about, buckets=_histogram(parts[5].content))
    if 6 in parts:
        return _audio(*about, _last_content(parts[6].content, 4))
    if 8 in parts and 9 in parts:
        plugin = _last_content(_last_content(parts[9].content, 1), 1)
        return _read_tensor(plugin, parts[8].content, about)
    return None


def _read_tensor(plugin: bytes, tensor: bytes, about: tuple[str, int, int]) -> Media | None:
    """Return the media of a plugin's tensor: the format of TensorFlow 2 and of PyTorch's texts."""
    texts = [part.content for part in _fields(tensor) if part.number == 8]
    match plugin:
        case b"text":
            text = "\n\n".join(content.decode("utf-8", "replace") for content in texts)
            return Media("text", *about, text=text[:TEXT_CHARACTERS_MAX])
        case b"images" if len(texts) > 2:
            # The width and the height come first.
            return _image(*about, texts[2])
        case b"audio" if texts:
            return _audio(*about, texts[0])
        case b"histograms":
            return Media("histogram", *about, buckets=_tensor_buckets(tensor))
    return None


def _image(tag: str, step: int, time_ms: int, content: bytes) -> Media:
    types = [name for start, name in _IMAGES if content.startswith(start)]
    return Media("image", tag, step, time_ms, types[0] if types else "", content)


def _audio(tag: str, step: int, time_ms: int, content: bytes) -> Media:
    is_wave = content[:4] == b"RIFF" and content[8:12] == b"WAVE"
    return Media("audio", tag, step, time_ms, "audio/wav" if is_wave else "", content)


def _histogram(message: bytes) -> tuple[tuple[float, float, float], ...]:
    """Return the buckets of a HistogramProto, which has upper limits. Empty buckets at the ends are
    left out.
    """
    numbers: dict[int, list[float]] = {6: [], 7: []}
    least = 0.0
    for part in _fields(message):
        if part.number == 1:
            least = _double(part.bits)
        elif part.number in numbers:
            numbers[part.number] += _doubles(part.content) if part.content else [_double(part.bits)]
    limits, counts = numbers[6], numbers[7]
    lower = [min(least, *limits[:1]), *limits[:-1]]
    return _trim_buckets(list(zip(lower, limits, counts, strict=False)))


def _tensor_buckets(tensor: bytes) -> tuple[tuple[float, float, float], ...]:
    """Return the buckets of a tensor with rows of lower limit, upper limit and count."""
    kind = 0
    content = b""
    for part in _fields(tensor):
        if part.number == 1:
            kind = part.bits
        elif part.number in (4, 5, 6):
            content += part.content
    values = _floats(content) if kind == _DT_FLOAT else _doubles(content)
    if kind not in (_DT_FLOAT, _DT_DOUBLE):
        return ()
    rows = list(zip(values[::3], values[1::3], values[2::3], strict=False))
    return _trim_buckets(rows)


def _trim_buckets(
    buckets: list[tuple[float, float, float]],
) -> tuple[tuple[float, float, float], ...]:
    """Return the buckets between the first and the last with a count, at most BUCKETS_MAX."""
    known = [n for n, (_, _, count) in enumerate(buckets) if count > 0]
    if not known:
        return ()
    return tuple(buckets[known[0] : known[-1] + 1][:BUCKETS_MAX])


def _fields(message: bytes) -> Iterator[_Field]:
    """Yield the fields of an encoded message. Raises ValueError for invalid bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            bits, at = _varint(message, at)
            yield _Field(number, bits)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            if at + size > len(message):
                raise ValueError("a number is cut")
            yield _Field(number, int.from_bytes(message[at : at + size], "little"))
            at += size
        elif wire == 2:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise ValueError("a text is cut")
            yield _Field(number, content=message[at : at + size])
            at += size
        else:
            raise ValueError(f"wire type {wire}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the varint at an offset, and the offset behind the varint."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _last_content(message: bytes, number: int) -> bytes:
    """Return the content of the last field with this number. b"" without such a field."""
    contents = [part.content for part in _fields(message) if part.number == number]
    return contents[-1] if contents else b""


def _double(bits: int) -> float:
    return float(struct.unpack("<d", (bits & 2**64 - 1).to_bytes(8, "little"))[0])


def _doubles(content: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(content) // 8}d", content[: len(content) // 8 * 8]))


def _floats(content: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(content) // 4}f", content[: len(content) // 4 * 4]))
