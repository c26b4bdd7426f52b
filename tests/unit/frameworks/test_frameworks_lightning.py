from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from detcloud import DetcloudError, core
from detcloud.shared.trial_directory import Preemption
from tests.conftest import require
from tests.unit.core.trial_files import direct
from tests.unit.frameworks.conftest import TrialRuns

# What frameworks warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")
Runs = Callable[..., TrialRuns]


@pytest.fixture(autouse=True)
def lightning() -> Any:
    require("lightning")
    return require("lightning.pytorch")


class Noisy(Dataset[Any]):
    """Records with random noise on the total at each load."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: int) -> Any:
        values, total = self.records[number]
        return values, total + torch.rand(())


def fit(
    context: core.Context,
    epochs: int,
    stop_at: int = 0,
    deadline: int | None = 1,
    observe: Callable[[int], object] = lambda _: None,
    **options: Any,
) -> list[torch.Tensor]:
    """Trains on 40 shuffled records in 5 batches; a request to stop comes in batch `stop_at`. Each
    batch is observed.
    """
    import lightning.pytorch as pl

    from detcloud.lightning import DetLogger, TrialCallback

    class Network(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(6, 8), torch.nn.Dropout(0.4), torch.nn.Linear(8, 1)
            )

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            number = self.trainer.global_step + 1
            observe(number)
            if number == stop_at:
                context.preempt.request(Preemption(deadline, "test"))
            loss = self._loss(batch)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", self._loss(batch))

        def _loss(self, batch: Any) -> torch.Tensor:
            values, sums = batch
            return torch.nn.functional.mse_loss(self.layers(values)[:, 0], sums)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=options.pop("learning_rate", 0.01))

    pl.seed_everything(3, verbose=False)
    values = torch.rand(40, 6, generator=torch.Generator().manual_seed(5))
    records = TensorDataset(values, values.sum(1))
    resumes = options.pop("resumes", True)
    callback = TrialCallback(context)
    module = Network()
    validation = DataLoader(records, batch_size=40) if options.pop("validates", True) else None
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[callback],
        logger=DetLogger(context),
        log_every_n_steps=2,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    checkpoint = callback.latest_checkpoint()
    loader = options.pop("loader", process_generator)(records)
    trainer.fit(module, loader, validation, ckpt_path=checkpoint if resumes else None)
    return list(module.state_dict().values())


def test_a_stopped_training_ends_with_the_unbroken_weights(
    trial_runs: Runs,
) -> None:
    unbroken, broken = trial_runs("unbroken"), trial_runs("broken", checkpoint_policy="none")
    with unbroken.run() as context:
        expected = fit(context, 3)
    # Without a deadline the training stops at the end of the epoch.
    with broken.run() as context:
        fit(context, 3, stop_at=8, deadline=None)
    with broken.run() as context:
        weights = fit(context, 3)
    assert all(map(torch.equal, weights, expected))
    assert broken.steps("checkpoint") == [10, 15]
    assert broken.exits() == ["preempted", "completed"]
    assert unbroken.steps("metrics", "validation") == [5, 10, 15]
    assert broken.steps("metrics", "validation") == [5, 10, 15]
    # Training metrics of every second batch, without the validation metrics.
    assert unbroken.steps("metrics", "training") == [2, 4, 6, 8, 10, 12, 14]
    names = {name for line in unbroken.lines("metrics") for name in line["metrics"]}
    assert names == {"train_loss", "epoch", "loss"}


def test_lightning_stopped_within_an_epoch_ends_with_the_unbroken_weights(
    trial_runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    # An epoch has 5 batches, so batch 8 is the third of the second epoch.
    with trial_runs("unbroken").run() as context:
        expected = fit(context, 3, loader=own_generator)
    broken = trial_runs("broken", checkpoint_policy="none")
    with broken.run() as context:
        fit(context, 3, stop_at=8, loader=own_generator)
    assert broken.steps("checkpoint") == [8]
    assert "goes on after batch" not in capsys.readouterr().out
    with broken.run() as context:
        weights = fit(context, 3, loader=own_generator)
    assert "goes on after batch 3 of its epoch\n" in capsys.readouterr().out
    assert all(map(torch.equal, weights, expected))
    assert broken.steps("checkpoint") == [8, 15]
    assert broken.steps("metrics", "validation") == [5, 10, 15]
    assert broken.exits() == ["preempted", "completed"]


def own_generator(records: Any) -> Any:
    """Make a loader with its own generator for the order, and noise on each record."""
    generator = torch.Generator().manual_seed(7)
    return DataLoader(Noisy(records), batch_size=8, shuffle=True, generator=generator)


def test_lightning_saves_in_the_background(trial_runs: Runs) -> None:
    runs = trial_runs("trial", checkpoint_policy="all")
    store = runs.hold_store()
    release = {9: store.may_store.set}
    with runs.run() as context:
        fit(context, 2, observe=lambda at: release.get(at, int)())
    order = runs.order()
    assert order.index(("checkpoint", 5)) > order.index(("metrics", 6))
    assert runs.steps("checkpoint") == [5, 10]
    assert runs.exits() == ["completed"]


def process_generator(records: Any) -> Any:
    return DataLoader(Noisy(records), batch_size=8, shuffle=True)


def worker_generators(records: Any) -> Any:
    return DataLoader(Noisy(records), batch_size=8, shuffle=True, num_workers=1)


def stream(records: Any) -> Any:
    """Make a loader with an unknown number of batches."""
    return DataLoader(Stream(Noisy(records)), batch_size=8)


class Stream(IterableDataset[Any]):
    """All records in random order."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def __iter__(self) -> Iterator[Any]:
        return (self.records[number] for number in torch.randperm(len(self.records)).tolist())


@pytest.mark.parametrize("loader", [process_generator, worker_generators, stream])
def test_torch_loaders_resume_within_an_epoch(trial_runs: Runs, loader: Callable[..., Any]) -> None:
    with trial_runs("unbroken").run() as context:
        expected = fit(context, 2, loader=loader)
    broken = trial_runs("broken", checkpoint_policy="none")
    for stop_at in (2, 8, 0):
        with broken.run() as context:
            weights = fit(context, 2, stop_at=stop_at, loader=loader)
    assert broken.steps("checkpoint") == [2, 8, 10]
    assert all(map(torch.equal, weights, expected))


class Batches:
    """Loader of the user without state, always in the same order."""

    def __init__(self, records: Any) -> None:
        self._loader: DataLoader[Any] = DataLoader(records, batch_size=8)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


def test_a_custom_loader_restarts_the_epoch_with_a_notice(
    trial_runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = trial_runs("trial", checkpoint_policy="none")
    with runs.run() as context:
        fit(context, 3, stop_at=8, loader=Batches)
    with runs.run() as context:
        fit(context, 3, loader=Batches)
    output = capsys.readouterr().out
    assert (
        "goes on after batch 3 of its epoch; Batches is not a torch DataLoader and has no" in output
    )
    assert runs.steps("checkpoint") == [8, 15]


def test_operation_is_completed_after_the_checkpoint_or_by_the_next_process(
    trial_runs: Runs,
) -> None:
    runs = trial_runs("trial", checkpoint_policy="none")
    # 7 batches end within the second epoch, so the answer is the second validation.
    with runs.run(length=7) as context:
        direct(runs.folder / "trial", revision=2, length=7, closed=True)
        fit(context, 100)
    (answer,) = runs.lines("completed")
    validations = [line for line in runs.lines("metrics") if line["group"] == "validation"]
    assert (answer["length"], answer["metric"]) == (7, validations[-1]["metrics"]["loss"])
    assert runs.steps("checkpoint") == [10]
    assert runs.exits() == ["completed"]
    with runs.run(length=7, closed=True) as context:
        fit(context, 100)
    assert [line["metric"] for line in runs.lines("completed")] == [answer["metric"]] * 2
    assert runs.steps("checkpoint") == [10]


def test_lightning_completes_with_training_metrics_without_validation(trial_runs: Runs) -> None:
    runs = trial_runs("trial", metric="train_loss", checkpoint_policy="best")
    with runs.run(length=5, closed=True) as context:
        fit(context, 100, validates=False)
    assert runs.steps("checkpoint") == [5]
    assert runs.lines("completed")[0]["length"] == 5


def test_lightning_counts_lengths_in_epochs(trial_runs: Runs) -> None:
    runs = trial_runs("trial", version=2, checkpoint_policy="none")
    with runs.run(length=2, length_unit="epochs", closed=True) as context:
        fit(context, 100)
    assert [line["length"] for line in runs.lines("completed")] == [2]
    assert runs.steps("checkpoint") == [10]
    # After the second epoch the completed operation replaces a report of progress.
    assert [line["value"] for line in runs.lines("progress")] == [0.5]
    assert runs.exits() == ["completed"]


def test_a_trainer_without_the_checkpoint_is_an_error(trial_runs: Runs) -> None:
    runs = trial_runs("trial")
    with runs.run() as context:
        fit(context, 1)
    with (
        pytest.raises(DetcloudError, match=r"trained for 5 batches.*callback\.latest_checkpoint"),
        runs.run() as context,
    ):
        fit(context, 2, resumes=False)


def test_a_foreign_checkpoint_gives_only_weights(trial_runs: Runs) -> None:
    first = trial_runs("first")
    with first.run() as context:
        expected = fit(context, 1)
    storage = {"type": "directory", "path": str(first.folder / "store")}
    latest = {**(first.latest_checkpoint() or {}), "trial_id": 3}
    second = trial_runs("second", latest_checkpoint=latest, trial_id=5, storage=storage)
    with second.run() as context:
        weights = fit(context, 1, learning_rate=0.0)
    assert all(map(torch.equal, weights, expected))
    assert second.steps("metrics", "validation") == [5]


def test_det_logger_requires_a_context(trial_runs: Runs) -> None:
    from detcloud.lightning import DetLogger

    with pytest.raises(DetcloudError, match=r"with detcloud\.core\.init\(\) as context"):
        DetLogger()
    with (
        trial_runs("trial").run() as context,
        pytest.raises(DetcloudError, match="the context alone"),
    ):
        DetLogger(context, config={})


def test_example_learns(trial_runs: Runs) -> None:
    require("sklearn")
    runs = trial_runs("trial", metric="val_accuracy", hparams={"epochs": 3, "learning_rate": 0.01})
    runs.run_example("lightning_digits")
    last = [line for line in runs.lines("metrics") if line["group"] == "validation"][-1]
    # A tenth is chance.
    assert last["metrics"]["val_accuracy"] > 0.7
    assert runs.exits() == ["completed"]
