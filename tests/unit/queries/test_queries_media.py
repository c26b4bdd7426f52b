"""Media of a trial over HTTP, read in parts."""

import base64
import struct
from pathlib import Path
from typing import Any

import pytest

from control_plane.metrics.event_records import masked_crc
from control_plane.queries import trial_media
from detcloud.shared.event_parts import part_key
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import Cluster

EVENTS = "events.out.tfevents.1.host"
PNG = b"\x89PNG\r\n\x1a\n" + b"p" * 100


def encode_field(number: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer with fewer than 128 * 128 bytes."""
    size = bytes([len(content) % 128 + 128, len(content) // 128])
    return bytes([number * 8 + 2]) + size + content


def record(step: int, image: bytes = PNG) -> bytes:
    """Return a record with an image at a step below 128."""
    value = encode_field(1, b"digits") + encode_field(4, encode_field(4, image))
    event = b"\x10" + bytes([step]) + encode_field(5, encode_field(1, value))
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc(length)) + event + b"\x00" * 4


def all_pages(cluster: Cluster, limit: int) -> list[dict[str, Any]]:
    pages = [cluster.get(f"/trials/1/media?limit={limit}").json]
    while cursor := pages[-1]["next_cursor"]:
        pages.append(cluster.get(f"/trials/1/media?limit={limit}&cursor={cursor}").json)
        assert len(pages) < 50
    return pages


def test_images_have_content_and_step(cluster: Cluster, place: Path) -> None:
    (place / EVENTS).write_bytes(record(1) + record(2))
    (place / "notes.txt").write_bytes(b"no events")
    page = cluster.get("/trials/1/media").json
    assert [(item["kind"], item["tag"], item["step"]) for item in page["items"]] == [
        ("image", "digits", 1),
        ("image", "digits", 2),
    ]
    assert base64.b64decode(page["items"][0]["content"]) == PNG
    assert page["items"][0]["content_type"] == "image/png"
    size = len(record(1) + record(2))
    assert (page["read_bytes"], page["total_bytes"], page["next_cursor"]) == (size, size, None)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_continue_over_files_and_parts(cluster: Cluster, place: Path, limit: int) -> None:
    content = record(1) + record(2) + record(3)
    # Parts of a bucket end anywhere.
    for start, end in ((0, 50), (50, 200), (200, len(content))):
        part = place / part_key(EVENTS, 1, 1, start)
        part.parent.mkdir(exist_ok=True)
        part.write_bytes(content[start:end])
    (place / "z").mkdir()
    (place / "z" / EVENTS).write_bytes(record(4))
    pages = all_pages(cluster, limit)
    steps = [item["step"] for page in pages for item in page["items"]]
    assert steps == [1, 2, 3, 4]
    read = [page["read_bytes"] for page in pages]
    assert read == sorted(read)
    assert read[-1] == pages[-1]["total_bytes"]


def test_request_reads_a_limited_number_of_bytes(
    cluster: Cluster, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_media, "READ_BYTES_MAX", 1)
    (place / EVENTS).write_bytes(record(1) + record(2))
    pages = all_pages(cluster, 100)
    assert [[item["step"] for item in page["items"]] for page in pages] == [[1], [2], []]


def test_damaged_file_is_named_and_others_are_read(cluster: Cluster, place: Path) -> None:
    (place / EVENTS).write_bytes(record(1) + b"\x01" * 20)
    (place / "z").mkdir()
    (place / "z" / EVENTS).write_bytes(record(2))
    page = cluster.get("/trials/1/media").json
    assert [item["step"] for item in page["items"]] == [1, 2]
    [damage] = page["damages"]
    assert damage.startswith(f"{EVENTS}, byte {len(record(1))}: ")


def test_unknown_format_and_large_file_have_no_content(
    cluster: Cluster, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_media, "ITEM_BYTES_MAX", len(PNG) - 1)
    (place / EVENTS).write_bytes(record(1) + record(2, b"<svg onload=x>"))
    large, other = cluster.get("/trials/1/media").json["items"]
    assert (large["content"], large["content_type"], large["size"]) == ("", "image/png", len(PNG))
    assert (other["content"], other["content_type"]) == ("", "")


def test_trial_without_files_has_no_media(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    page = cluster.get("/trials/1/media").json
    assert (page["items"], page["next_cursor"], page["total_bytes"]) == ([], None, 0)
    assert cluster.get("/trials/9/media").code == "not_found"
