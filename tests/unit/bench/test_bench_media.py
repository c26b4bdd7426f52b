"""Tests of the media that the bench of the page writes."""

from pathlib import Path

from bench.media_filling import BUCKETS, FILE, write_media
from control_plane.metrics.event_records import RecordReader, media_of


def test_event_file_has_all_kinds_of_media_for_each_step(tmp_path: Path) -> None:
    write_media(tmp_path / "1", 2)
    records = list(RecordReader().feed((tmp_path / "1" / FILE).read_bytes()))
    assert len(records) == 2
    media = media_of(records[1])
    assert [item.kind for item in media] == ["image"] * 4 + ["histogram"] * 4 + ["text"]
    assert {item.step for item in media} == {2}
    assert {item.content_type for item in media[:4]} == {"image/png"}
    # Random counts may be 0 at the ends, where buckets are left out.
    assert BUCKETS - 3 < len(media[4].buckets) <= BUCKETS
    assert media[-1].text.endswith("| 2 | fine |")
