"""Cached data sets: computed once, published atomically, verified, and rebuilt after damage."""

import fcntl
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from detcloud import DetcloudError, core
from detcloud.pytorch import DataLoader
from detcloud.pytorch.data_layer import CachedDataset, DataLayer
from detcloud.pytorch.data_layer.manifest import FORMAT
from detcloud.shared.trial_directory import Preemption
from tests.emulators.server import free_port
from tests.forked_process import await_exit_code, fork
from tests.patience import wait_until
from tests.unit.core.trial_files import direct, enter, make_trial, reports
from tests.unit.pytorch.squares import (
    COUNT,
    VALUES,
    Squares,
    damage,
    layer_of,
    open_cached,
    shards,
    values,
)


@pytest.fixture
def folder_layer(tmp_path: Path) -> dict[str, Any]:
    return {"type": "shared_fs", "host_storage_path": str(tmp_path / "folder_layer")}


def test_training_validation_and_versions_are_cached_separately(
    folder_layer: dict[str, Any],
) -> None:
    with layer_of(**folder_layer) as layer:
        decorators = [
            layer.cache_train_dataset("a", "1"),
            layer.cache_validation_dataset("a", "1"),
            layer.cache_train_dataset("a", "2"),
            layer.cache_train_dataset("b/c", "1"),
        ]
        sets = [item(lambda number=n: [number])() for n, item in enumerate(decorators)]
    assert [item[0] for item in sets] == [0, 1, 2, 3]
    root = Path(folder_layer["host_storage_path"])
    assert {str(path.parent.relative_to(root)) for path in root.rglob("manifest-*")} == {
        "a/1_train",
        "a/1_val",
        "a/2_train",
        "b%2Fc/1_train",
    }


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Endless(), "gave an Endless: expected a data set with __len__ and __getitem__"),
        (iter([1]), "expected a data set with __len__ and __getitem__"),
        ({"a": 1}, "gave a dict"),
        ([], "a data set without samples"),
        ([1, {2}], "squares/v1_train, sample 1: the sample is a builtins.set"),
    ],
)
def test_uncacheable_data_sets_are_refused(
    folder_layer: dict[str, Any], source: Any, message: str
) -> None:
    with pytest.raises(DetcloudError, match=message):
        open_cached(folder_layer, source)
    assert shards(Path(folder_layer["host_storage_path"])) == []


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", 3, "x" * 201])
def test_malformed_dataset_ids_are_refused(folder_layer: dict[str, Any], name: Any) -> None:
    with layer_of(**folder_layer) as layer, pytest.raises(DetcloudError, match="dataset_id"):
        layer.cache_train_dataset(name, "v1")


def test_an_unknown_data_layer_type_is_refused() -> None:
    with pytest.raises(
        DetcloudError, match=r"data_layer\.type is 'hdfs': expected one of gcs, s3, shared_fs"
    ):
        open_cached({"type": "hdfs"}, Squares())


def test_a_killed_build_is_repeated_and_deleted_after_a_day(
    folder_layer: dict[str, Any],
) -> None:
    folder = Path(folder_layer["host_storage_path"])
    squares = Squares()

    def build_three_samples() -> None:
        squares.wait = lambda: len(squares.computed) < 3 or die()
        open_cached(folder_layer, squares)

    assert await_exit_code(fork(build_three_samples)) == -signal.SIGKILL
    assert len(shards(folder)) == 1
    cached = open_cached(folder_layer, squares)
    assert values(cached) == VALUES
    assert squares.computed == list(range(COUNT))
    # The abandoned build is kept for a day, since its builder may be slow, and then deleted.
    builds = {path.parent for path in shards(folder)}
    assert len(builds) == 2
    for number, build in enumerate(builds):
        # The name of a build begins with its time in ms: these builds begin in 1970.
        build.rename(build.with_name(f"{number}-old"))
    with layer_of(**folder_layer) as layer:
        layer.cache_train_dataset("squares", "v2")(lambda: [1])()
    assert len({path.parent for path in shards(cached.folder)}) == 2
    (cached.folder / "manifest-000001.json").unlink()
    assert values(open_cached(folder_layer, Squares())) == VALUES
    assert len({path.parent for path in shards(cached.folder)}) == 1


def die() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def test_preemption_ends_a_cache_build(
    folder_layer: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, data_layer=folder_layer)
    enter(trial, monkeypatch)
    direct(trial, revision=1, length=5, preempt={"reason": "pause"})
    squares = Squares()
    with pytest.raises(SystemExit), core.init() as context:
        DataLayer(context).cache_train_dataset("squares", "v1")(lambda: squares)()
    assert reports(trial, "exit")[0]["reason"] == "preempted"
    assert shards(Path(folder_layer["host_storage_path"])) == []
    # The next run builds the set from the beginning.
    direct(trial, revision=2, length=5)
    with core.init() as context:
        cached = DataLayer(context).cache_train_dataset("squares", "v1")(lambda: squares)()
    assert len(cached) == COUNT


@pytest.mark.parametrize("nodes", [1, 2])
def test_preemption_ends_a_cache_build_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """Request the preemption of rank 1 while rank 0 or rank 1 computes a sample.

    Samples are computed in chunks of 16: on a single node, rank 0 computes samples 0 to 15 and
    rank 1 computes 16 to 31. On two nodes with a process each, the first node computes all samples.
    """
    monkeypatch.setenv("DETCLOUD_CHANNEL_PORT", str(free_port()))
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    layer = {"type": "shared_fs", "host_storage_path": str(tmp_path)}
    contexts: dict[int, core.Context] = {}

    def ask(rank: int) -> Any:
        # Only rank 1 gets the request, like after a notice on a worker's machine.
        wait_until(lambda: len(contexts) == 2)
        contexts[1].preempt.request(Preemption(1, "a notice"))
        wait_until(contexts[rank].preempt.is_requested)

    def run(rank: int, squares: Squares) -> CachedDataset | int:
        local, cross = ((rank, 2), (0, 1)) if nodes == 1 else ((0, 1), (rank, 2))
        group = core.DistributedContext(rank, 2, *local, *cross, "127.0.0.1")
        with core.init(config={"data_layer": layer}, distributed=group) as context:
            contexts[rank] = context
            try:
                return DataLayer(context).cache_train_dataset("squares", "v1")(lambda: squares)()
            except SystemExit as error:
                assert context.preempt.was_seen
                return int(str(error.code))

    for asking in range(2 if nodes == 1 else 1):
        contexts.clear()
        sources = [Squares(count=32), Squares(count=32)]
        sources[asking].wait = partial(ask, asking)
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(run, range(2), sources)) == [0, 0]
        # The computing rank stops after a single sample.
        assert len(sources[asking].computed) == 1
        assert not shards(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        datasets = list(pool.map(run, range(2), [Squares(count=32), Squares(count=32)]))
    squares = [number * number for number in range(32)]
    assert [values(dataset) for dataset in datasets] == [squares, squares]


def test_preemption_ends_the_wait_for_a_foreign_build(
    folder_layer: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(folder_layer["host_storage_path"], "squares/v1_train")
    folder.mkdir(parents=True)
    trial = make_trial(tmp_path, data_layer=folder_layer)
    enter(trial, monkeypatch)
    direct(trial, revision=1, length=5, preempt={"reason": "pause"})
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SystemExit), core.init() as context:
            DataLayer(context).cache_train_dataset("squares", "v1")(Squares)()
    assert reports(trial, "exit")[0]["reason"] == "preempted"


def test_a_wrong_suspicion_of_damage_is_removed(folder_layer: dict[str, Any]) -> None:
    cached = open_cached(folder_layer, Squares())
    [shard] = shards(cached.folder)
    damage(shard, 0)
    with pytest.raises(DetcloudError):
        values(cached)
    assert list(cached.folder.glob("*.suspect"))
    # The second damage undoes the first.
    damage(shard, 0)
    again = open_cached(folder_layer, Squares())
    assert again.manifest == cached.manifest
    assert not list(cached.folder.glob("*.suspect"))


@pytest.mark.parametrize("text", [b"", b"[]", b'{"format": 1}', b"\xff", b"[" * 100_000])
def test_a_malformed_manifest_is_replaced(folder_layer: dict[str, Any], text: bytes) -> None:
    cached = open_cached(folder_layer, Squares())
    manifest = cached.folder / "manifest-000001.json"
    manifest.write_bytes(text)
    again = open_cached(folder_layer, Squares())
    assert (again.manifest.generation, values(again)) == (2, VALUES)


def test_a_newer_cache_format_is_refused(folder_layer: dict[str, Any]) -> None:
    cached = open_cached(folder_layer, Squares())
    manifest = cached.folder / "manifest-000001.json"
    newer = manifest.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}')
    manifest.write_text(newer)
    with pytest.raises(DetcloudError, match="by a newer version of detcloud"):
        open_cached(folder_layer, Squares())


def test_a_manifest_cannot_name_a_foreign_folder(folder_layer: dict[str, Any]) -> None:
    cached = open_cached(folder_layer, Squares())
    manifest = cached.folder / "manifest-000001.json"
    text = manifest.read_text()
    for build in ("../v0", "/etc", ".."):
        manifest.write_text(text.replace(cached.manifest.build, build))
        assert open_cached(folder_layer, Squares()).manifest.build != build
        for later in cached.folder.glob("manifest-*[2-9].json"):
            later.unlink()


class Noise:
    """Data set of random samples from the global generators."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> tuple[float, float]:
        return random.random(), torch.rand(()).item()


@pytest.mark.parametrize("workers", [0, 2])
def test_random_samples_depend_only_on_the_name_of_the_set(tmp_path: Path, workers: int) -> None:
    def noise(name: str, folder: str, workers: int = 0) -> list[Any]:
        with layer_of(type="shared_fs", host_storage_path=str(tmp_path / folder)) as layer:
            cached = layer.cache_train_dataset(name, "v1", num_workers=workers)(Noise)()
            return [cached[number] for number in range(len(cached))]

    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    first = noise("a", "one", workers)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    torch.manual_seed(2)
    assert noise("a", "two") == first
    assert len(set(first)) == 40
    assert noise("b", "two") != first


def test_nodes_with_separate_folders_build_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [Squares(), Squares()]

    def run(node: int, folder: str) -> CachedDataset:
        group = core.DistributedContext(node, 2, 0, 1, chief_ip="127.0.0.1")
        layer = {"type": "shared_fs", "host_storage_path": str(tmp_path / folder)}
        with core.init(config={"data_layer": layer}, distributed=group) as context:
            make = DataLayer(context).cache_train_dataset("squares", "v1")
            return make(lambda: sources[node])()

    for number, folders in enumerate((("own-0", "own-1"), ("both", "both"))):
        monkeypatch.setenv("DETCLOUD_CHANNEL_PORT", str(free_port()))
        for item in sources:
            item.computed.clear()
        with ThreadPoolExecutor(2) as pool:
            datasets = list(pool.map(run, range(2), folders))
        assert [values(item) for item in datasets] == [VALUES, VALUES]
        computed = [len(item.computed) for item in sources]
        assert computed == [[COUNT, COUNT], [COUNT, 0]][number]


def test_shuffled_order_depends_on_seed_and_epoch(folder_layer: dict[str, Any]) -> None:
    cached = open_cached(folder_layer, Squares(), shuffle=True)
    epochs = [values(cached.shard(0, 1, epoch)) for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == VALUES
    assert epochs[0] != epochs[1]
    assert values(cached.shard(0, 1, 1)) == epochs[1]
    parts = [values(cached.shard(rank, 3, 1)) for rank in range(3)]
    assert parts == [epochs[1][rank::3] for rank in range(3)]
    # A trial's loader with the set's seed has an identical order.
    batches = DataLoader(cached, batch_size=5).batches_from(0, cached.seed)
    assert [next(batches)[1].tolist() for _ in range(4)] == [
        part for epoch in epochs for part in (epoch[:5], epoch[5:])
    ]
    other = CachedDataset(cached.folder, cached.manifest, seed=cached.seed + 1, is_shuffled=True)
    assert values(other.shard(0, 1)) != epochs[0]
    assert values(open_cached(folder_layer, Squares()).shard(1, 2)) == VALUES[1::2]
    with pytest.raises(DetcloudError, match="a rank from 0 to size - 1"):
        cached.shard(2, 2)


def test_skip_shuffle_keeps_the_order_of_all_epochs(folder_layer: dict[str, Any]) -> None:
    cached = open_cached(folder_layer, Squares(), shuffle=True, skip_shuffle_at_epoch_end=True)
    assert values(cached.shard(0, 1, 0)) == values(cached.shard(0, 1, 7)) != VALUES
    batches = DataLoader(cached, batch_size=COUNT).batches_from(0, 99)
    first, second = (next(batches)[1].tolist() for _ in range(2))
    assert first == second == values(cached.shard(0, 1))


@pytest.mark.parametrize("workers", [0, 2])
def test_mapped_cached_set_resumes_within_an_epoch(
    folder_layer: dict[str, Any], workers: int
) -> None:
    def jitter(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
        return sample[0] + torch.rand(1), sample[1]

    mapped = open_cached(folder_layer, Squares(), shuffle=True).map(jitter)
    loader = DataLoader(mapped, batch_size=4, num_workers=workers)

    def labels(first: int, count: int, rank: int, size: int) -> list[list[int]]:
        batches = loader.share(rank, size).batches_from(first, 3)
        return [next(batches)[1].tolist() for _ in range(count)]

    # 3 batches per epoch: batch 4 is the second batch of the second epoch.
    whole = labels(0, 8, 0, 1)
    assert sorted(label for batch in whole[:3] for label in batch) == VALUES
    assert labels(4, 4, 0, 1) == whole[4:]
    assert [labels(1, 3, rank, 2) for rank in range(2)] == [whole[2::2], whole[3::2]]


def test_without_a_cluster_the_cache_lies_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached = open_cached({}, Squares())
    assert cached.folder == tmp_path / "detcloud/data-layer/squares/v1_train"
    monkeypatch.setenv("DETCLOUD_DATA_LAYER_PATH", str(tmp_path / "given"))
    configured = {"host_storage_path": str(tmp_path / "configured")}
    assert open_cached(configured, Squares()).folder.is_relative_to(tmp_path / "given")
