"""Loaders other than detcloud's, which require disabled reproducibility checks."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset
from torch.utils.data import DataLoader as TorchDataLoader

from detcloud import DetcloudError, pytorch
from detcloud.pytorch.loaders import PlainLoader, share_loaders
from tests.unit.core.trial_files import reports
from tests.unit.pytorch.line_trial import Cluster, LineTrial


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Stream of the records `first` to 11, without a length."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(self.first, 12):
            yield torch.tensor([float(number)]), torch.tensor([0.0])


class StreamTrial(LineTrial):
    """Trial on a stream in batches of 3; training resumes where the last run stopped."""

    checks_off = True

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.seen: list[float] = []
        if self.checks_off:
            context.experimental.disable_dataset_reproducibility_checks()
            context.experimental.disable_auto_to_device()

    def build_training_data_loader(self) -> Any:
        trained = self.context.get_initial_batch()
        return TorchDataLoader(Stream(3 * trained % 12), batch_size=3)

    def build_validation_data_loader(self) -> Any:
        return TorchDataLoader(Stream(), batch_size=5)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> torch.Tensor:
        assert epoch_idx == 0
        self.seen.append(batch[0][0].item())
        self.after_batch(batch_idx + 1)
        return torch.tensor(0.0)

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"loss": float(len(batch[0]))}

    def evaluation_reducer(self) -> pytorch.Reducer:
        return pytorch.Reducer.SUM


def test_a_stream_resumes_from_the_initial_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, StreamTrial)
    cluster.direct(revision=1, length=6, closed=True)

    def stop(steps: int) -> None:
        if steps == 2:
            cluster.direct(revision=2, length=6, closed=True, preempt={"deadline_ms": 1})

    first: Any = cluster.run(lambda trial: setattr(trial, "after_batch", stop))
    latest = cluster.latest_checkpoint()
    cluster = Cluster(tmp_path, monkeypatch, StreamTrial, latest_checkpoint=latest, epoch=2)
    cluster.direct(revision=3, length=6, closed=True)
    second: Any = cluster.run()
    assert first.seen == [0.0, 3.0]
    # The stream ends at record 12 and restarts at the trial's first record.
    assert second.seen == [6.0, 9.0, 6.0, 9.0]
    assert reports(cluster.trial, "metrics")[-1]["metrics"] == {"loss": 12.0, "batches": 6}


def test_torchs_loader_requires_disabled_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CheckedTrial(StreamTrial):
        checks_off = False

    cluster = Cluster(tmp_path, monkeypatch, CheckedTrial)
    cluster.direct(revision=1, length=2, closed=True)
    with pytest.raises(DetcloudError, match=r"or call context\.experimental.disable_dataset"):
        cluster.run()


def test_epoch_length_is_the_chiefs(context: pytorch.PyTorchTrialContext) -> None:
    points = TensorDataset(torch.arange(10.0))
    ours = pytorch.DataLoader(points, batch_size=4)
    loaders = share_loaders(ours, TorchDataLoader(points), context.distributed, checked=False)
    assert (loaders.epoch_length, len(loaders.validation)) == (3, 10)
    assert len(PlainLoader(TorchDataLoader(points)).first_batches(2)) == 2
    empty = PlainLoader([]).batches_from(0, 0)
    with pytest.raises(DetcloudError, match="has no batch"):
        next(empty)
    with pytest.raises(DetcloudError, match="build_validation_data_loader returned 3"):
        share_loaders(ours, 3, context.distributed, checked=True)


def test_torchs_iterator_draws_from_the_generator_once_per_epoch() -> None:
    # torch's iterator draws a seed for workers; a resumed trial does not repeat this draw.
    batches = PlainLoader(TorchDataLoader(Stream(), batch_size=6)).batches_from(0, 0)
    drawn = torch.get_rng_state()
    next(batches), next(batches)
    assert drawn.equal(torch.get_rng_state())
    # The next epoch has a new iterator, which draws again.
    next(batches)
    assert not drawn.equal(torch.get_rng_state())


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    with pytorch.init(checkpoint_dir=tmp_path) as context:
        yield context


def test_batch_sampler_determines_the_batches() -> None:
    points = TensorDataset(torch.arange(6.0))
    batches = BatchSampler(SequentialSampler(points), 4, drop_last=False)
    loader = pytorch.DataLoader(points, batch_sampler=batches, worker_init_fn=print)
    whole = [batch[0].tolist() for batch in islice(loader.batches_from(1, 5), 3)]
    assert whole == [[4.0, 5.0], [0.0, 1.0, 2.0, 3.0], [4.0, 5.0]]
    share = loader.get_data_loader(repeat=True, skip=1, num_replicas=2, rank=0)
    assert next(iter(share))[0].tolist() == [0.0, 1.0, 2.0, 3.0]
