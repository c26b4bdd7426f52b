"""A TensorBoard event file with images, histograms and texts, for the figures of the web page."""

import struct
import zlib
from pathlib import Path
from random import Random

from control_plane.metrics.event_records import masked_crc

BEGAN_SECONDS = 1_700_000_000.0
IMAGES, HISTOGRAMS, BUCKETS = 4, 4, 30
IMAGE_SIDE = 64
FILE = "events.out.tfevents.1.bench"


def write_media(folder: Path, steps: int) -> None:
    """Write an event file with IMAGES images, HISTOGRAMS histograms and a text for each step."""
    chance = Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("wb") as file:
        for step in range(1, steps + 1):
            file.write(_encode_record(_event(step, chance)))


def _event(step: int, chance: Random) -> bytes:
    """Return TensorBoard's `Event` of a step."""
    values = [_value(f"image {n}", 4, _field(4, _random_png(chance))) for n in range(IMAGES)]
    values += [_value(f"weights {n}", 5, _histogram(chance)) for n in range(HISTOGRAMS)]
    note = b"| step | note |\n|---|---|\n| %d | fine |" % step
    plugin = _field(9, _field(1, _field(1, b"text")))
    values.append(_value("notes", 8, _field(8, note)) + plugin)
    summary = b"".join(_field(1, value) for value in values)
    time = b"\x09" + struct.pack("<d", BEGAN_SECONDS + step)
    return time + b"\x10" + _varint(step) + _field(5, summary)


def _value(tag: str, number: int, content: bytes) -> bytes:
    """Return a value of a summary with a tag, and the content in the field of this number."""
    return _field(1, tag.encode()) + _field(number, content)


def _histogram(chance: Random) -> bytes:
    limits = [float(n) for n in range(1, BUCKETS + 1)]
    counts = [float(chance.randrange(100)) for _ in limits]
    return b"".join(
        _field(number, struct.pack(f"<{BUCKETS}d", *numbers))
        for number, numbers in ((6, limits), (7, counts))
    )


def _random_png(chance: Random) -> bytes:
    """Return a PNG file of IMAGE_SIDE x IMAGE_SIDE pixels of noise, about 12 KB."""
    # A line of pixels begins with the number of its filter; 0 is no filter.
    lines = b"".join(b"\0" + chance.randbytes(3 * IMAGE_SIDE) for _ in range(IMAGE_SIDE))
    head = struct.pack(">IIBBBBB", IMAGE_SIDE, IMAGE_SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(*chunk) for chunk in chunks)


def _png_chunk(name: bytes, content: bytes) -> bytes:
    size, checksum = len(content), zlib.crc32(name + content)
    return struct.pack(">I", size) + name + content + struct.pack(">I", checksum)


def _encode_record(event: bytes) -> bytes:
    """Return the record of an event. The content's checksum, which no reader uses, is 0."""
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc(length)) + event + bytes(4)


def _field(number: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
