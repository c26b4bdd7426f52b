import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud import core
from detcloud.core.tensorboard import EventWriter, crc32c, scalar_event, tfrecord
from tests.conftest import require
from tests.patience import wait_until
from tests.unit.core.full_disk import files_of_at_most
from tests.unit.core.trial_files import enter, make_trial, reports


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        # The check value of the CRC catalogue, and 32 zero bytes and 32 one bytes of RFC 3720.
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
    ],
)
def test_checksum_is_crc32c(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


def test_event_encoding() -> None:
    # 1.0 s as a double; step 300 = 0b10_0101100, so 0xAC 0x02; 0.5 as a float is 0x3F000000.
    summary = b"\x0a\x08" + b"\x0a\x01a" + b"\x15\x00\x00\x00\x3f"
    expected = b"\x09" + struct.pack("<d", 1.0) + b"\x10\xac\x02" + b"\x2a\x0a" + summary
    assert scalar_event(1.0, 300, {"a": 0.5}) == expected


def test_numbers_are_written_under_the_group(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "ein Ordner ü", "4.1.0")
    writer.add_scalars(
        "training", 3, {"loss": 0.5, "count": 7, "text": "x", "list": [1], "ok": True}
    )
    writer.add_scalars("other", 4, {"only": "text"})
    writer.add_scalars("validation", 200, {"λ": float("nan"), "huge": 1e300, "low": -1e300})
    writer.close()
    (path,) = writer.folder.iterdir()
    assert path.name.startswith("events.out.tfevents.")
    version, training, validation = events(path)
    assert version[3] == [b"brain.Event:2"]
    assert (training[2], scalars(training)) == ([3], {"training/loss": 0.5, "training/count": 7.0})
    values = scalars(validation)
    assert validation[2] == [200]
    assert str(values["validation/λ"]) == "nan"
    assert (values["validation/huge"], values["validation/low"]) == (float("inf"), -float("inf"))


def test_a_later_run_of_the_trial_writes_a_new_event_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epoch in (1, 2):
        trial = make_trial(tmp_path, allocation_id=f"4.{epoch}", epoch=epoch)
        enter(trial, monkeypatch)
        with core.init() as context:
            context.train.report_metrics("system", epoch, {"load": 1.5})
            folder = context.train.get_tensorboard_path()
    assert folder == tmp_path / "store" / "tensorboard" / "3" / "4"
    first, second = sorted(folder.iterdir())
    assert [scalars(events(path)[1]) for path in (first, second)] == [{"system/load": 1.5}] * 2
    assert [events(path)[1][2] for path in (first, second)] == [[1], [2]]
    assert [line["metrics"] for line in reports(trial, "metrics")] == [{"load": 1.5}] * 2


def test_without_a_store_the_folder_lies_in_the_trial_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, storage=None)
    enter(trial, monkeypatch)
    with core.init() as context:
        assert context.train.get_tensorboard_path() == trial / "out" / "tensorboard" / "3" / "4"


def test_without_a_cluster_the_folder_lies_beside_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    with core.init(checkpoint_dir=tmp_path) as context:
        context.train.report_training_metrics(1, {"loss": 1.0})
    (path,) = (tmp_path / "tensorboard" / "0" / "0").iterdir()
    assert scalars(events(path)[1]) == {"training/loss": 1.0}


def test_an_unwritable_event_folder_warns_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file")
    writer = EventWriter(tmp_path / "taken", "x")
    for step in (1, 2):
        writer.add_scalars("training", step, {"loss": 1.0})
    writer.close()
    warning = capsys.readouterr().err
    assert warning.count("could not be written for TensorBoard") == 1


def test_a_record_cut_by_a_full_disk_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = EventWriter(tmp_path, "x")
    writer.add_scalars("training", 1, {"loss": 1.0})
    writer.flush()
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    with files_of_at_most(size + 20):
        writer.add_scalars("training", 2, {"loss": 2.0})
        writer.flush()
    assert path.stat().st_size == size
    writer.add_scalars("training", 3, {"loss": 3.0})
    writer.close()
    assert [event[2] for event in events(path)[1:]] == [[1], [3]]
    assert "for TensorBoard" in capsys.readouterr().err


def test_events_are_written_soon_and_in_order(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "x")
    for step in range(5):
        writer.add_scalars("training", step, {"loss": step})
    # The version of the format comes first.
    wait_until(lambda: [len(list(events(path))) for path in tmp_path.iterdir()] == [6])
    (path,) = tmp_path.iterdir()
    assert [event[2] for event in events(path)[1:]] == [[step] for step in range(5)]
    writer.close()


def test_tensorboard_reads_the_event_file(tmp_path: Path) -> None:
    require("tensorboard")
    loader = require("tensorboard.backend.event_processing.event_file_loader")
    writer = EventWriter(tmp_path, "x")
    for step in range(3):
        writer.add_scalars("training", step, {"loss": step / 2, "λ": 1.0})
    writer.close()
    (path,) = tmp_path.iterdir()
    read = list(loader.EventFileLoader(str(path)).Load())
    points = [
        (event.step, value.tag, list(value.tensor.float_val))
        for event in read[1:]
        for value in event.summary.value
    ]
    # 0 / 2, 1 / 2 and 2 / 2 are exact in single precision.
    assert points[::2] == [(step, "training/loss", [step / 2]) for step in range(3)]
    assert {tag for _, tag, _ in points[1::2]} == {"training/λ"}


def test_tensorboard_hides_reports_of_lost_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("tensorboard")
    reader = require("tensorboard.backend.event_processing.event_accumulator")
    for epoch, lost, losses in ((1, None, {5: 1.0, 10: 2.0, 20: 3.0}), (2, 11, {15: 4.0})):
        fields = {"allocation_id": f"4.{epoch}", "epoch": epoch, "discarded_from": lost}
        enter(make_trial(tmp_path, **fields), monkeypatch)
        with core.init() as context:
            for step, loss in losses.items():
                context.train.report_metrics("g", step, {"loss": loss})
            folder = context.train.get_tensorboard_path()
    shown = reader.EventAccumulator(str(folder))
    shown.Reload()
    points = [(event.step, event.value) for event in shown.Scalars("g/loss")]
    assert points == [(5, 1.0), (10, 2.0), (15, 4.0)]


Fields = dict[int, list[Any]]


def events(path: Path) -> list[Fields]:
    """Decode and return the events of a file by field number; assert that all checksums match."""
    # Read once, since the writer may append meanwhile.
    content = whole = path.read_bytes()
    decoded, written = [], []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        data, content = content[12 : 12 + length], content[16 + length :]
        decoded.append(dict(_fields(data)))
        written.append(tfrecord(data))
    assert b"".join(written) == whole
    return decoded


def scalars(event: Fields) -> dict[str, float]:
    (summary,) = event[5]
    values = [dict(_fields(value)) for value in dict(_fields(summary))[1]]
    return {value[1][0].decode(): value[2][0] for value in values}


def _fields(data: bytes) -> Iterator[tuple[int, list[Any]]]:
    """Yield the field numbers of a protobuf message with the lists of their values."""
    fields: Fields = {}
    while data:
        key, data = _varint(data)
        number, wire_type = key >> 3, key & 7
        value: Any
        if wire_type == 0:
            value, data = _varint(data)
        elif wire_type == 1:
            value, data = struct.unpack("<d", data[:8])[0], data[8:]
        elif wire_type == 5:
            value, data = struct.unpack("<f", data[:4])[0], data[4:]
        else:
            length, data = _varint(data)
            value, data = data[:length], data[length:]
        fields.setdefault(number, []).append(value)
    yield from fields.items()


def _varint(data: bytes) -> tuple[int, bytes]:
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, data[place + 1 :]
    raise ValueError("the data end within a number")
