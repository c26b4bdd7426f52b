"""The wait of a trial's store for a bucket that was lost."""

from pathlib import Path

import pytest

from detcloud.shared.outage import OUTAGE_SECONDS_MAX
from detcloud.storage import HashingStore, KeyExists, KeyNotFound, StorageError, StoreReplaced
from detcloud.storage.patient_store import PATIENCE
from tests.unit.storage.lost_bucket import LosableStore, Pauses, patient

KEY = "3/4/1/u/weights"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"12345678")
    return path


def test_requests_pass_without_a_pause(source: Path, tmp_path: Path) -> None:
    pauses = Pauses()
    store = patient(LosableStore(), pauses)
    assert isinstance(store, HashingStore)
    store.put(KEY, source)
    assert store.list("3/4") == {KEY: 8}
    with pytest.raises(KeyExists):
        store.put(KEY, source)
    store.get(KEY, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"12345678"
    assert len(store.get_hashed(KEY, tmp_path / "copy")) == 64
    store.delete(KEY)
    assert store.list("3/4") == {}
    assert pauses.count == 0


def test_write_waits_for_the_bucket_and_says_that_earlier_files_are_gone(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket, pauses = LosableStore(), Pauses()
    store = patient(bucket, pauses, has_existed=False)
    store.put(KEY, source)
    bucket.lose()
    pauses.create_after = 3
    with pytest.raises(StoreReplaced, match="lacks earlier files"):
        store.put("3/4/1/u/manifest.json", source)
    assert pauses.seconds == 3 * PATIENCE.pause
    log = capsys.readouterr().err
    assert log.count("there is no bucket b; waiting until the bucket exists again") == 1
    for key in ("3/4/1/u/manifest.json", KEY):
        store.put(key, source)
    assert bucket.files.keys() == {"3/4/1/u/manifest.json", KEY}
    with pytest.raises(KeyExists):
        store.put("3/4/1/u/manifest.json", source)


def test_new_bucket_may_refuse_requests_until_its_permissions_arrive(
    source: Path, tmp_path: Path
) -> None:
    bucket, pauses = LosableStore(), Pauses()
    bucket.lose()
    pauses.create_after, bucket.refused = 1, 2
    store = patient(bucket, pauses)
    with pytest.raises(StoreReplaced):
        store.put(KEY, source)
    # A pause for the bucket, and two for the refusals.
    assert pauses.count == 3
    bucket.lose()
    pauses.create_after, bucket.refused, pauses.restored = 4, 2, {KEY: b"12345678"}
    store.get(KEY, tmp_path / "copy")
    assert pauses.count == 6
    bucket.refused = 1
    with pytest.raises(StorageError, match="403"):
        store.get(KEY, tmp_path / "copy")


def test_wait_ends_if_the_file_is_gone(source: Path) -> None:
    bucket, pauses = LosableStore(), Pauses()
    bucket.lose()
    pauses.create_after = 1
    source.unlink()
    with pytest.raises(FileNotFoundError):
        patient(bucket, pauses).put(KEY, source)
    assert pauses.count == 1


def test_write_without_the_bucket_fails_after_hours(source: Path) -> None:
    bucket, pauses = LosableStore(), Pauses()
    bucket.lose()
    with pytest.raises(StorageError, match="there is no bucket b"):
        patient(bucket, pauses).put(KEY, source)
    assert pauses.seconds == OUTAGE_SECONDS_MAX


def test_bucket_that_never_existed_fails_at_once(source: Path, tmp_path: Path) -> None:
    bucket, pauses = LosableStore(), Pauses()
    bucket.lose()
    store = patient(bucket, pauses, has_existed=False)
    with pytest.raises(StorageError, match="there is no bucket b"):
        store.put(KEY, source)
    with pytest.raises(StorageError, match="there is no bucket b"):
        store.get(KEY, tmp_path / "copy")
    assert pauses.count == 0


def test_lost_upload_begins_again_without_a_pause(source: Path) -> None:
    bucket, pauses = LosableStore(), Pauses()
    bucket.lost_uploads = 1
    store = patient(bucket, pauses, has_existed=False)
    with pytest.raises(StoreReplaced):
        store.put(KEY, source)
    store.put(KEY, source)
    assert pauses.count == 0


def test_read_waits_until_the_files_of_the_trial_are_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket, pauses = LosableStore(), Pauses()
    bucket.lose()
    bucket.create()
    pauses.create_after, pauses.restored = 2, {KEY: b"12345678"}
    patient(bucket, pauses).get_hashed(KEY, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"12345678"
    assert pauses.count == 2
    assert "`detcloud deploy restore CLOUD --objects` restores" in capsys.readouterr().err


def test_read_of_an_empty_bucket_names_the_remedy_after_minutes(tmp_path: Path) -> None:
    pauses = Pauses()
    with pytest.raises(StorageError, match="restores the objects of a lost bucket") as raised:
        patient(LosableStore(), pauses).get(KEY, tmp_path / "copy")
    assert not isinstance(raised.value, KeyNotFound)
    assert pauses.seconds == PATIENCE.read_max


def test_missing_file_among_others_fails_at_once(source: Path, tmp_path: Path) -> None:
    bucket, pauses = LosableStore(), Pauses()
    store = patient(bucket, pauses)
    store.put("3/4/1/other/weights", source)
    with pytest.raises(KeyNotFound):
        store.get(KEY, tmp_path / "copy")
    # A trial may not list the folder of the trial that it continues.
    with pytest.raises(KeyNotFound):
        store.get("1/2/1/u/weights", tmp_path / "copy")
    assert pauses.count == 0
