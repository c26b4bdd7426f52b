"""Cached data sets on every type of data layer: a single winner, and no partial or damaged set."""

import fcntl
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError, core
from detcloud.pytorch.data_layer import CachedDataset, DataLayer, cache, source
from detcloud.pytorch.data_layer.dataset import suspicion_file
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.seaweedfs import SeaweedFs
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.pytorch.squares import (
    COUNT,
    VALUES,
    Squares,
    damage,
    open_cached,
    shards,
    small_shards,
    values,
)


@pytest.fixture(params=["shared_fs", "s3", "gcs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return a `data_layer` of each type; remote types have a local folder for copies."""
    if request.param == "shared_fs":
        return {"type": "shared_fs", "host_storage_path": str(tmp_path / "shared")}
    where = {
        "bucket_directory_path": "data/sets",
        "local_cache_host_path": str(tmp_path / "local"),
    }
    if request.param == "gcs":
        gcs: FakeGcs = request.getfixturevalue("gcs")
        return {"type": "gcs", "bucket": gcs.new_bucket(), **where}
    s3: SeaweedFs = request.getfixturevalue("s3")
    bucket = s3.place()
    keys = {name: getattr(bucket, name) for name in ("endpoint_url", "access_key", "secret_key")}
    return {"type": "s3", "bucket": bucket.name, **keys, **where}


def other_machine(place: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the place for a second machine, with another local folder for copies."""
    if place["type"] == "shared_fs":
        return place
    return {**place, "local_cache_host_path": str(folder)}


def test_data_set_is_computed_once_for_all_machines(
    place: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = Squares(), Squares()
    assert values(open_cached(place, first)) == VALUES
    assert first.computed == list(range(COUNT))
    assert values(open_cached(place, second)) == VALUES
    assert values(open_cached(other_machine(place, tmp_path / "other"), second)) == VALUES
    assert second.computed == []
    printed = capfd.readouterr().out
    assert printed.count("[detcloud] data set squares/v1_train: it is not there yet") == 1
    assert "10 samples are read from" in printed


def test_error_of_the_user_function_is_raised_and_leaves_no_file(place: dict[str, Any]) -> None:
    with pytest.raises(ArithmeticError, match="no square"):
        open_cached(place, Squares(fails_at=5))
    folder = place.get("host_storage_path") or place["local_cache_host_path"]
    assert shards(Path(folder)) == []
    assert values(open_cached(place, Squares())) == VALUES


def test_one_of_two_concurrent_builders_wins_and_both_read_the_set(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two machines have no locks in common: both are half-way before either continues.
    def refuse(*_: Any) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    both = threading.Barrier(2, timeout=PROCESS_SECONDS_MAX)
    places = [place, other_machine(place, tmp_path / "other")]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(open_cached, places, (Squares(wait=both.wait) for _ in places)))
    assert [values(one) for one in found] == [VALUES, VALUES]
    assert found[0].manifest == found[1].manifest
    assert found[0].manifest.generation == 1
    # The loser's files are gone on both machines.
    for one in found:
        assert {path.parent.name for path in shards(one.folder)} == {one.manifest.build}


def test_samples_in_several_files_keep_their_order(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "write_shards", small_shards)
    assert values(open_cached(place, Squares())) == VALUES
    cached = open_cached(other_machine(place, tmp_path / "other"), Squares())
    assert values(cached) == VALUES
    assert len(cached.manifest.shards) == COUNT
    assert cached[-1][1] == VALUES[-1]
    with pytest.raises(IndexError):
        cached[COUNT]
    assert values(pickle.loads(pickle.dumps(cached))) == VALUES


@pytest.mark.parametrize("how", ["shorter", "index", "gone"])
def test_damaged_file_is_noticed_at_the_start_and_repaired(place: dict[str, Any], how: str) -> None:
    cached = open_cached(place, Squares())
    (path,) = shards(cached.folder)
    if how == "gone":
        path.unlink()
    elif how == "index":
        damage(path, -1)
    else:
        path.write_bytes(path.read_bytes()[:-1])
    squares = Squares()
    again = open_cached(place, squares)
    assert values(again) == VALUES
    # A bucket's local copy is fetched again; a shared original is built again.
    is_copy = place["type"] != "shared_fs"
    assert squares.computed == ([] if is_copy else list(range(COUNT)))
    assert again.manifest.generation == (1 if is_copy else 2)


def test_damaged_sample_is_refused_and_repaired_by_the_next_start(
    place: dict[str, Any],
) -> None:
    cached = open_cached(place, Squares())
    (path,) = shards(cached.folder)
    # The first byte of a sample is part of its length, the fifth part of its text.
    damage(path, 5)
    again = open_cached(place, Squares())
    with pytest.raises(DetcloudError, match=r"sample 0 of .* squares/v1_train cannot be read"):
        again[0]
    assert again[1][1] == 1
    good = open_cached(place, Squares())
    assert values(good) == VALUES
    assert not suspicion_file(good.folder, good.manifest).exists()


def test_damaged_data_set_in_a_bucket_is_built_again(s3: SeaweedFs, tmp_path: Path) -> None:
    bucket = s3.bucket()
    keys = {
        name: getattr(bucket.place, name) for name in ("endpoint_url", "access_key", "secret_key")
    }
    place = {"type": "s3", "bucket": bucket.place.name, "bucket_directory_path": "d", **keys}
    first = open_cached({**place, "local_cache_host_path": str(tmp_path / "a")}, Squares())
    (key,) = (key for key, _ in bucket.list_objects("d/") if key.endswith(".bin"))
    content = bytearray(b"".join(bucket.read(key)))
    content[5] ^= 0xFF
    bucket.write(key, [bytes(content)])
    squares = Squares()
    again = open_cached({**place, "local_cache_host_path": str(tmp_path / "b")}, squares)
    assert values(again) == VALUES
    assert again.manifest.generation == 2
    assert squares.computed == list(range(COUNT))
    # Owners of a good copy of the first build still read their copy.
    assert values(first) == VALUES


def test_each_process_builds_a_share(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_PORT", str(os.getpid()))
    monkeypatch.setattr(source, "CHUNK_SAMPLES", 1)
    sources = [Squares(), Squares(), Squares()]

    def run(rank: int) -> list[CachedDataset]:
        group = core.DistributedContext(rank, 3, rank, 3, chief_ip="127.0.0.1")
        with core.init(config={"data_layer": place}, distributed=group) as context:
            make = DataLayer(context).cache_train_dataset("squares", "v1")(lambda: sources[rank])
            found = [make(), make()]
            # Later exchanges do not mix with those of the data layer.
            assert context.distributed.allgather(rank) == [0, 1, 2]
            return found

    with ThreadPoolExecutor(3) as pool:
        found = [one for sets in pool.map(run, range(3)) for one in sets]
    # 10 * 1 // 3 = 3 and 10 * 2 // 3 = 6 are where the shares of ranks 1 and 2 begin.
    assert [one.computed for one in sources] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert [values(one) for one in found] == [VALUES] * 6
    assert [shard.samples for shard in found[0].manifest.shards] == [3, 3, 4]
