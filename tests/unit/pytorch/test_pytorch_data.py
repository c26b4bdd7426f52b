import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    Sampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

from detcloud import DetcloudError
from detcloud.pytorch import DataLoader
from detcloud.pytorch.loaders import NO_BATCH, padded_batches
from detcloud.pytorch.samplers import RepeatBatchSampler


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def first_batches(loader: DataLoader, first: int, count: int, seed: int = 5) -> list[list[int]]:
    return [batch[0].tolist() for batch in islice(loader.batches_from(first, seed), count)]


def test_no_batch_spans_two_epochs() -> None:
    loader = DataLoader(numbers(5), batch_size=2)
    assert len(loader) == 3
    assert first_batches(loader, 0, 4) == [[0, 1], [2, 3], [4], [0, 1]]
    dropping = DataLoader(numbers(5), batch_size=2, drop_last=True)
    assert first_batches(dropping, 0, 3) == [[0, 1], [2, 3], [0, 1]]


@pytest.mark.parametrize("first", range(12))
def test_any_batch_can_be_the_first(first: int) -> None:
    loader = DataLoader(numbers(10), batch_size=3, shuffle=True)
    assert first_batches(loader, first, 12 - first) == first_batches(loader, 0, 12)[first:]


def test_epochs_are_shuffled_differently_by_the_seed() -> None:
    loader = DataLoader(numbers(8), batch_size=8, shuffle=True)
    first, second = first_batches(loader, 0, 2)
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second
    assert first_batches(loader, 0, 2) == [first, second]
    assert first_batches(loader, 0, 1, seed=6) != [first]


def test_shuffling_leaves_the_global_generator_unchanged() -> None:
    loader = DataLoader(numbers(8), batch_size=2, shuffle=True)
    before = torch.get_rng_state()
    first_batches(loader, 0, 10)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sampler_with_a_generator_is_seeded() -> None:
    sampler = WeightedRandomSampler([1.0] * 6, 6)
    loader = DataLoader(numbers(6), batch_size=2, sampler=sampler)
    assert first_batches(loader, 4, 5) == first_batches(loader, 0, 9)[4:]


class ShufflingSampler(Sampler[int]):
    """Sampler that draws from the global generators, like many users' samplers."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        start = random.randrange(6)
        return iter([(start + index) % 6 for index in torch.randperm(6).tolist()])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_with_global_generators_is_repeatable(workers: int) -> None:
    def loader() -> DataLoader:
        return DataLoader(numbers(6), batch_size=2, sampler=ShufflingSampler(), num_workers=workers)

    torch.manual_seed(1)
    before = torch.get_rng_state()
    whole = first_batches(loader(), 0, 9)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert first_batches(loader(), 4, 5) == whole[4:]
    assert whole[:3] != whole[3:6]


class OnePassSampler(Sampler[int]):
    """Faulty sampler with an empty second pass."""

    def __init__(self) -> None:
        self.indices = iter(range(6))

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        return self.indices


def test_an_exhausted_sampler_is_an_error() -> None:
    loader = DataLoader(numbers(6), batch_size=2, sampler=OnePassSampler())
    with pytest.raises(
        DetcloudError, match="OnePassSampler gave no batch in pass 1 and promised 3"
    ):
        first_batches(loader, 0, 4)


class UnevenBatches(Sampler[list[int]]):
    """Batch sampler over ten records with random batch sizes; the length 3 is only a guess."""

    def __init__(self, *, least: int, most: int) -> None:
        self._least, self._most = least, most

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        while start < 10:
            size = random.randint(self._least, self._most)
            yield list(range(start, min(start + size, 10)))
            start += size


# A pass has 5 to 10 batches of size 1 or 2, or 1 to 2 batches of size 5 to 10.
@pytest.mark.parametrize(("least", "most"), [(1, 2), (5, 10)])
@pytest.mark.parametrize("workers", [0, 1])
def test_passes_of_varying_length_are_repeatable(least: int, most: int, workers: int) -> None:
    def loader() -> DataLoader:
        sampler: Any = UnevenBatches(least=least, most=most)
        return DataLoader(numbers(10), batch_sampler=sampler, num_workers=workers)

    whole = first_batches(loader(), 0, 20)
    records = [index for batch in whole for index in batch]
    assert records == [index % 10 for index in range(len(records))]
    assert [len(batch) for batch in whole[:4]] != [len(batch) for batch in whole[10:14]]
    for first in (1, 7, 13):
        assert first_batches(loader(), first, 20 - first) == whole[first:]
    # An epoch has the sampler's claimed number of batches; an iteration has all of a pass.
    assert len(loader()) == 3
    assert [index for batch in loader() for index in batch[0].tolist()] == list(range(10))


def test_shares_of_an_uneven_pass_cover_all_batches() -> None:
    sampler: Any = UnevenBatches(least=1, most=2)
    whole = DataLoader(numbers(10), batch_sampler=sampler)
    shares = [whole.share(rank, 2) for rank in range(2)]
    batches = [[batch for batch in padded_batches(share)] for share in shares]
    assert len(batches[0]) == len(batches[1]) == shares[0].pass_length()
    merged = [batch for row in zip(*batches, strict=True) for batch in row if batch is not NO_BATCH]
    assert [index for batch in merged for index in batch[0].tolist()] == list(range(10))
    assert first_batches(shares[1], 2, 3) == first_batches(whole, 0, 10)[5::2]


def test_an_endless_sampler_is_read_lazily() -> None:
    endless: Any = RepeatBatchSampler(BatchSampler(range(4), 2, drop_last=False))
    loader = DataLoader(numbers(4), batch_sampler=endless)
    assert first_batches(loader, 3, 3) == [[2, 3], [0, 1], [2, 3]]


def test_loader_has_the_attributes_of_torchs_loader() -> None:
    loader = DataLoader(numbers(4), 2, drop_last=True, timeout=3)
    theirs = loader.get_data_loader()
    assert isinstance(loader.sampler, SequentialSampler)
    batches: Any = theirs.batch_sampler
    assert list(loader.batch_sampler) == list(batches)
    for name in ("pin_memory", "timeout", "num_workers", "collate_fn", "worker_init_fn"):
        assert getattr(loader, name) == getattr(theirs, name), name
    # torch's loader has both only in its batch sampler.
    assert (loader.batch_size, loader.drop_last) == (2, True)


def test_iteration_over_a_loader_is_repeatable() -> None:
    loader = DataLoader(numbers(5), batch_size=2, shuffle=True)
    first = [batch[0].tolist() for batch in loader]
    assert sorted(index for batch in first for index in batch) == [0, 1, 2, 3, 4]
    assert [batch[0].tolist() for batch in loader] == first


class Noisy(Dataset[torch.Tensor]):
    """Data set with augmentation: every access draws from the worker's generator."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(())


def test_noise_in_workers_depends_only_on_the_batch() -> None:
    def draw_batches(workers: int, first: int) -> list[Any]:
        loader = DataLoader(Noisy(), batch_size=2, num_workers=workers)
        return [batch.tolist() for batch in islice(loader.batches_from(first, 5), 5 - first)]

    whole = draw_batches(1, 0)
    assert draw_batches(2, 0) == whole
    assert draw_batches(1, 2) == whole[2:]


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class DatasetWithoutLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": Endless()}, "Endless has no records to ask for by number"),
        (
            {"dataset": DatasetWithoutLength()},
            "DatasetWithoutLength has no records to ask for by number",
        ),
        ({"sampler": iter([0])}, "list_iterator has no length"),
        ({"shuffle": True, "sampler": [0]}, "both give an order"),
        ({"batch_sampler": [[0]], "shuffle": True}, "batch_sampler excludes batch_size"),
        ({"batch_sampler": iter([[0]])}, "list_iterator has no length"),
        ({"batch_size": 9, "drop_last": True}, "has no batch: 5 records, batch_size 9"),
    ],
)
def test_unrepeatable_loaders_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(**{"dataset": numbers(5), **arguments})


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"number": index, "pair": (float(index), [index] * 2)}


class ListedPairs(Pairs):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("dataset", [Pairs(), ListedPairs()], ids=["single", "list"])
def test_batches_without_workers_equal_torchs_batches(dataset: Pairs) -> None:
    ours = list(DataLoader(dataset, batch_size=2))
    theirs = list(TorchDataLoader(dataset, batch_size=2))
    # Batches of 2, 2 and 1; a pair is transposed by torch's collate_fn.
    assert str(ours) == str(theirs)
    assert [len(item["number"]) for item in ours] == [2, 2, 1]


def test_profile_shows_the_loading_of_batches() -> None:
    loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        batches = list(loader)
    marks = [event for event in profiled.events() if event.name.startswith("enumerate(DataLoader)")]
    assert len(marks) == len(batches) == 3


def test_loader_accepts_torchs_positional_arguments_and_ignores_the_generator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = numbers(6)
    own = DataLoader(
        data, 2, True, None, None, 0, None, False, False, 0, None, None, torch.Generator()
    )
    assert "DataLoader(generator=...) is not used" in capsys.readouterr().out
    plain = DataLoader(data, 2, shuffle=True)
    assert [batch.tolist() for (batch,) in own] == [batch.tolist() for (batch,) in plain]
