"""Media in event files that TensorBoard's writers wrote, and bytes that are no records."""

import struct
from pathlib import Path
from typing import Any

import pytest

from control_plane.metrics import event_records
from control_plane.metrics.event_records import (
    Media,
    RecordReader,
    RecordsDamaged,
    masked_crc,
    media_of,
)
from tests.conftest import require

PNG = b"\x89PNG\r\n\x1a\n" + b"rest"
WAVE = b"RIFF\x04\x00\x00\x00WAVE"


def frame_record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked_crc(length)) + content + b"\x00" * 4


def write_events(folder: Path, *summaries: tuple[int, Any]) -> bytes:
    """Return the bytes of an event file with summaries by step, written by TensorBoard."""
    protos = require("tensorboard.compat.proto.event_pb2")
    writers = require("tensorboard.summary.writer.event_file_writer")
    writer = writers.EventFileWriter(str(folder))
    for step, summary in summaries:
        writer.add_event(protos.Event(wall_time=12.5, step=step, summary=summary))
    writer.close()
    [file] = folder.iterdir()
    return file.read_bytes()


def read(content: bytes, block_bytes: int = 7) -> list[Media]:
    reader = RecordReader()
    blocks = (content[n : n + block_bytes] for n in range(0, len(content), block_bytes))
    found = [
        media for block in blocks for record in reader.feed(block) for media in media_of(record)
    ]
    assert reader.offset == len(content)
    return found


def test_media_of_tensorboards_first_format(tmp_path: Path) -> None:
    summary = require("tensorboard.compat.proto.summary_pb2")
    values = [
        summary.Summary.Value(tag="loss", simple_value=0.5),
        summary.Summary.Value(tag="digits", image={"height": 2, "encoded_image_string": PNG}),
        summary.Summary.Value(
            tag="weights",
            histo={
                "min": -1.0,
                "bucket_limit": [-1.0, 0.0, 2.0, 3.0],
                "bucket": [0.0, 3.0, 4.0, 0.0],
            },
        ),
        summary.Summary.Value(tag="voice", audio={"encoded_audio_string": WAVE}),
    ]
    content = write_events(tmp_path, (3, summary.Summary(value=values)))
    about = (3, 12_500)
    assert read(content) == [
        Media("image", "digits", *about, "image/png", PNG),
        # Empty buckets at the ends are left out.
        Media("histogram", "weights", *about, buckets=((-1.0, 0.0, 3.0), (0.0, 2.0, 4.0))),
        Media("audio", "voice", *about, "audio/wav", WAVE),
    ]


def test_media_of_plugins(tmp_path: Path) -> None:
    summary = require("tensorboard.compat.proto.summary_pb2")
    rows = struct.pack("<6d", 0, 1, 5, 1, 2, 7)

    def value(tag: str, plugin: str, **tensor: Any) -> Any:
        metadata = {"plugin_data": {"plugin_name": plugin}}
        return summary.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)

    values = [
        value("notes", "text", dtype=7, string_val=[b"a | b", "\u00fc".encode()]),
        value("digits", "images", dtype=7, string_val=[b"2", b"2", PNG]),
        value("voice", "audio", dtype=7, string_val=[WAVE, b"label"]),
        value("weights", "histograms", dtype=2, tensor_content=rows),
        value("curve", "pr_curves", dtype=2, tensor_content=rows),
    ]
    found = read(write_events(tmp_path, (1, summary.Summary(value=values))), 64)
    assert [(media.kind, media.tag) for media in found] == [
        ("text", "notes"),
        ("image", "digits"),
        ("audio", "voice"),
        ("histogram", "weights"),
    ]
    assert found[0].text == "a | b\n\n\u00fc"
    assert found[3].buckets == ((0.0, 1.0, 5.0), (1.0, 2.0, 7.0))


def test_large_record_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_records, "RECORD_BYTES_MAX", 10)
    content = frame_record(b"x" * 11) + frame_record(b"y" * 10)
    for size in (1, 5, 100):
        reader = RecordReader()
        blocks = (content[n : n + size] for n in range(0, len(content), size))
        assert [record for block in blocks for record in reader.feed(block)] == [b"y" * 10]
        assert reader.offset == len(content)


def test_incomplete_record_waits_for_the_rest() -> None:
    content = frame_record(b"abc")
    reader = RecordReader()
    assert list(reader.feed(content[:-1])) == []
    assert reader.offset == 0
    assert list(reader.feed(content[-1:])) == [b"abc"]


def test_damaged_length_names_the_byte() -> None:
    first = frame_record(b"abc")
    reader = RecordReader()
    with pytest.raises(RecordsDamaged, match=f"byte {len(first)}: the checksum"):
        list(reader.feed(first + b"\x01" * 12))


@pytest.mark.parametrize("record", [b"\x2a", b"\x2a\x05abc", b"\xff" * 20, b"\x0b", b"\x09\x00"])
def test_record_that_cannot_be_decoded_has_no_media(record: bytes) -> None:
    assert media_of(record) == []


def test_checksum_is_that_of_tensorflow() -> None:
    # The header of TensorFlow's record with 3 bytes: CRC-32C of the length, rotated and shifted.
    table = require("tensorboard.compat.tensorflow_stub.pywrap_tensorflow")
    length = struct.pack("<Q", 3)
    assert masked_crc(length) == table.masked_crc32c(length)
