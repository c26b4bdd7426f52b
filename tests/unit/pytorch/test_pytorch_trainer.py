import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from detcloud import DetcloudError, InvalidHP, pytorch
from detcloud.pytorch import Batch, Epoch
from tests.unit.core.trial_files import reports
from tests.unit.pytorch.line_trial import Cluster, LineTrial, _points


def test_workloads_end_at_all_boundaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, monkeypatch, min_validation_batches=6, min_checkpoint_batches=8)
    cluster.direct(revision=1, length=12, closed=True)
    cluster.run()
    # 5 is the scheduling unit, 6 the first validation, 8 the first checkpoint and 12 the end. At
    # the end, the checkpoint precedes the validation.
    assert cluster.workloads == "T5 T6 V6 T8 C8 T12 C12 V12 D12"
    assert cluster.exit_reason == "completed"


def test_training_metrics_are_averages_over_the_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class IndexTrial(LineTrial):
        def train_batch(  # type: ignore[override]
            self, batch: Any, epoch_idx: int, batch_idx: int
        ) -> dict[str, Any]:
            return {"idx": batch_idx}

    cluster = Cluster(tmp_path, monkeypatch, IndexTrial, scheduling_unit=4)
    cluster.direct(revision=1, length=6, closed=True)
    cluster.run()
    training = [line for line in reports(cluster.trial, "metrics") if line["group"] == "training"]
    # (0 + 1 + 2 + 3) / 4 and (4 + 5) / 2.
    assert [line["metrics"]["idx"] for line in training] == [1.5, 4.5]
    # An epoch has 4 batches, so that 6 batches complete a single epoch.
    assert training[1]["metrics"] == {"idx": 4.5, "batches": 6, "epochs": 1}
    assert [line["batches"] for line in training] == [4, 2]


def test_progress_is_reported_with_each_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=8, closed=True)
    cluster.run()
    assert [line["value"] for line in reports(cluster.trial, "progress")] == [5 / 8, 1.0]


@pytest.mark.parametrize(
    ("policy", "best", "losses", "expected"),
    [
        ("all", None, [3, 3, 3], "T2 V2 C2 T4 V4 C4 T6 C6 V6 D6"),
        ("none", None, [3, 2, 1], "T2 V2 T4 V4 T6 C6 V6 D6"),
        # The first is the best; the second ties; the end has a checkpoint anyway.
        ("best", None, [3, 3, 1], "T2 V2 C2 T4 V4 T6 C6 V6 D6"),
        # The experiment knows 2 already: 3 is worse, 1 is better.
        ("best", 2, [3, 1, 1], "T2 V2 T4 V4 C4 T6 C6 V6 D6"),
        # NaN is never a best metric.
        ("best", None, [float("nan"), 3, 1], "T2 V2 T4 V4 C4 T6 C6 V6 D6"),
    ],
)
def test_policy_decides_on_checkpoints_after_validations(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    best: float | None,
    losses: list[float],
    expected: str,
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, min_validation_batches=2, checkpoint_policy=policy)
    cluster.direct(revision=1, length=6, closed=True, best_validation=best)
    cluster.run(lambda trial: trial.losses.extend(losses))
    assert cluster.workloads == expected


def test_larger_metrics_may_be_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(
        tmp_path,
        monkeypatch,
        min_validation_batches=2,
        checkpoint_policy="best",
        smaller_is_better=False,
    )
    cluster.direct(revision=1, length=6, closed=True)
    cluster.run(lambda trial: trial.losses.extend([3, 2, 4]))
    assert cluster.workloads == "T2 V2 C2 T4 V4 T6 C6 V6 D6"


def test_an_idle_trial_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=4)

    def answer() -> None:
        cluster.direct(revision=2, length=4, answered=4)

    cluster.run(lambda trial: setattr(trial, "after_validation_batch", answer))
    assert cluster.workloads == "T4 C4 V4 D4"
    assert cluster.exit_reason == "idle"


def test_an_immediately_promoted_trial_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=4)

    def answer() -> None:
        cluster.direct(revision=2, length=7, answered=4, closed=True)

    cluster.run(lambda trial: setattr(trial, "after_validation_batch", answer))
    assert cluster.workloads == "T4 C4 V4 D4 T7 C7 V7 D7"


def test_callback_state_changed_by_a_validation_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=4)

    class Observer(pytorch.PyTorchCallback):
        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            cluster.direct(revision=2, length=4, answered=4)

    cluster.run(lambda trial: trial.callbacks.update(observer=Observer()))
    assert cluster.workloads == "T4 C4 V4 D4 C4"


def test_a_promoted_trial_does_not_repeat_its_last_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Cluster(tmp_path, monkeypatch, min_validation_batches=4)
    first.direct(revision=1, length=4, closed=True)
    first.run()
    assert first.workloads == "T4 C4 V4 D4"
    latest = first.latest_checkpoint()
    (first.trial / "out" / "report-0.jsonl").unlink()
    second = Cluster(
        tmp_path, monkeypatch, min_validation_batches=4, epoch=2, latest_checkpoint=latest
    )
    second.direct(revision=1, length=8, answered=4, closed=True)
    second.run()
    assert second.workloads == "T8 C8 V8 D8"


def test_a_pause_waits_for_the_workloads_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=12, closed=True)

    def pause(steps: int) -> None:
        if steps == 3:
            cluster.direct(revision=2, length=12, closed=True, preempt={"deadline_ms": None})

    cluster.run(lambda trial: setattr(trial, "after_batch", pause))
    assert cluster.workloads == "T5 C5"
    assert cluster.exit_reason == "preempted"
    assert reports(cluster.trial)[-1]["directive_revision"] == 2


def test_a_deadline_is_obeyed_at_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=12, closed=True)

    def warn(steps: int) -> None:
        if steps == 8:
            cluster.direct(revision=2, length=12, closed=True, preempt={"deadline_ms": 1})

    cluster.run(lambda trial: setattr(trial, "after_batch", warn))
    assert cluster.workloads == "T5 C8"


def test_a_validation_cut_by_a_deadline_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Cluster(tmp_path, monkeypatch, min_validation_batches=4)
    first.direct(revision=1, length=8, closed=True)
    first.run(
        lambda trial: setattr(
            trial, "after_validation_batch", lambda: signal.raise_signal(signal.SIGTERM)
        )
    )
    assert first.workloads == "T4 C4"
    latest = first.latest_checkpoint()
    (first.trial / "out" / "report-0.jsonl").unlink()
    second = Cluster(
        tmp_path, monkeypatch, min_validation_batches=4, epoch=2, latest_checkpoint=latest
    )
    positions: list[int] = []

    def prepare(trial: LineTrial) -> None:
        trial.after_validation_batch = lambda: positions.append(trial.context.current_train_batch())

    second.run(prepare)
    assert second.workloads == "V4 T8 C8 V8 D8"
    # The number of the last trained batch, from 0, as in an uninterrupted run.
    assert positions == [3, 7]


def test_a_requested_stop_ends_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=12, closed=True)

    def prepare(trial: LineTrial) -> None:
        trial.after_batch = lambda steps: trial.context.set_stop_requested(steps >= 3)

    trial = cluster.run(prepare)
    assert trial.context.get_stop_requested()
    assert cluster.workloads == "T5 C5"
    assert reports(cluster.trial, "early_exit")[0]["reason"] == "USER_REQUESTED_STOP"
    assert cluster.exit_reason == "stop_requested"


def test_invalid_hyperparameters_in_training_end_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=12, closed=True)

    def refuse(steps: int) -> None:
        raise InvalidHP("no")

    with pytest.raises(SystemExit):
        cluster.run(lambda trial: setattr(trial, "after_batch", refuse))
    assert cluster.exit_reason == "invalid_hp"


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("accuracy", "batch 2 lacks the searcher's metric 'accuracy'; it has: loss, rates"),
        ("rates", r"metric 'rates' at batch 2 is \[1.0, 1.0\]: it must be one"),
    ],
)
def test_searchers_metric_must_exist_and_be_a_number(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    metric: str,
    message: str,
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, metric=metric)
    cluster.direct(revision=1, length=2, closed=True)

    def wrap_rates(trial: LineTrial) -> None:
        trial.context.wrap_reducer(lambda _: [1.0, 1.0], name="rates")

    with pytest.raises(DetcloudError, match=message):
        cluster.run(wrap_rates)
    assert cluster.exit_reason == "errored"
    assert cluster.workloads == "T2 C2"


def test_a_nan_metric_is_reported_as_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=2, closed=True)
    cluster.run(lambda trial: trial.losses.append(float("nan")))
    assert reports(cluster.trial, "completed")[0]["metric"] == "NaN"


def test_test_mode_trains_a_single_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(
        tmp_path, monkeypatch, test_mode=True, min_validation_batches=1, checkpoint_policy="all"
    )
    cluster.direct(revision=1, length=100, closed=True)
    cluster.run()
    assert cluster.workloads == "T1 C1 V1 D100"


def test_an_initial_validation_comes_first_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, perform_initial_validation=True)
    cluster.direct(revision=1, length=2, closed=True)
    cluster.run()
    assert cluster.workloads == "V0 T2 C2 V2 D2"


def test_a_warm_start_loads_weights_and_counts_from_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Cluster(tmp_path, monkeypatch)
    source.direct(revision=1, length=3, closed=True)
    trained = source.run().model.weight.detach().clone()
    latest = {**source.latest_checkpoint(), "trial_id": 99}
    (source.trial / "out" / "report-0.jsonl").unlink()
    starts: list[torch.Tensor] = []

    class Look(pytorch.PyTorchCallback):
        def __init__(self, trial: LineTrial) -> None:
            self.trial = trial

        def on_training_start(self) -> None:
            starts.append(self.trial.model.weight.detach().clone())

    warm = Cluster(tmp_path, monkeypatch, epoch=2, latest_checkpoint=latest)
    warm.direct(revision=1, length=2, closed=True)
    warm.run(lambda trial: trial.callbacks.update(look=Look(trial)))
    assert torch.equal(starts[0], trained)
    assert warm.workloads == "T2 C2 V2 D2"


def test_arguments_of_fit_override_the_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, min_validation_batches=3)
    cluster.direct(revision=1, length=8, closed=True)
    # An epoch has 12 / 3 = 4 batches; metrics are reported at the multiples of 3, too.
    cluster.run(validation_period=Epoch(1), reporting_period=Batch(3), checkpoint_policy="all")
    assert cluster.workloads == "T3 T4 V4 C4 T6 T8 C8 V8 D8"
    assert capsys.readouterr().out.count("is not used: fit(") == 1


def test_order_of_callback_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def record_call(name: str) -> Any:
        return lambda _self, *_arguments: calls.append(name)

    hooks = [name for name in vars(pytorch.PyTorchCallback) if name.startswith("on_")]
    recorder = type("Recorder", (pytorch.PyTorchCallback,), {n: record_call(n) for n in hooks})
    cluster = Cluster(tmp_path, monkeypatch)
    cluster.direct(revision=1, length=4, closed=True)
    cluster.run(lambda trial: trial.callbacks.update(recorder=recorder()))
    assert calls == [
        "on_trial_startup",
        "on_training_start",
        "on_training_epoch_start",
        *(["on_before_optimizer_step"] * 4),
        "on_training_epoch_end",
        "on_training_workload_end",
        "on_checkpoint_save_start",
        "on_checkpoint_end",
        "on_checkpoint_write_end",
        "on_checkpoint_upload_end",
        "on_validation_step_start",
        "on_validation_start",
        "on_validation_epoch_start",
        "on_validation_epoch_end",
        "on_validation_step_end",
        "on_validation_end",
        "on_trial_shutdown",
    ]


def test_without_a_cluster_fit_needs_a_length(local: Path) -> None:
    with (
        pytest.raises(DetcloudError, match="fit needs max_length without a cluster"),
        pytorch.init(checkpoint_dir=local) as context,
    ):
        pytorch.Trainer(LineTrial(context), context).fit()


def test_without_a_cluster_training_resumes_from_a_checkpoint(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uuids: list[str] = []

    class Note(pytorch.PyTorchCallback):
        def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
            assert (first_batch_idx, checkpoint_uuid) == ((4, uuids[-1]) if uuids else (0, None))

        def on_checkpoint_upload_end(self, uuid: str) -> None:
            uuids.append(uuid)

    for length in (1, 2):
        with pytorch.init(checkpoint_dir=local) as context:
            trial = LineTrial(context)
            trial.callbacks["note"] = Note()
            latest = uuids[-1] if uuids else None
            trainer = pytorch.Trainer(trial, context)
            trainer.fit(max_length=Epoch(length), latest_checkpoint=latest)
    assert len(uuids) == 2
    assert "training at batch 8: loss=" in capsys.readouterr().out


def test_torchs_loader_is_refused_with_its_replacement(local: Path) -> None:
    class TorchLoaderTrial(LineTrial):
        def build_validation_data_loader(self) -> Any:
            return torch.utils.data.DataLoader(_points())

    with (
        pytest.raises(DetcloudError, match=r"return detcloud\.pytorch\.DataLoader"),
        pytorch.init(checkpoint_dir=local) as context,
    ):
        pytorch.Trainer(TorchLoaderTrial(context), context).fit(max_length=Batch(1))


def test_a_trial_must_define_exactly_one_evaluation_method(local: Path) -> None:
    class Both(LineTrial):
        def evaluate_full_dataset(self, data_loader: pytorch.DataLoader) -> dict[str, Any]:
            return {"batches": len(list(data_loader))}

    class Neither(Both):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch
        evaluate_full_dataset = pytorch.PyTorchTrial.evaluate_full_dataset

    with pytorch.init(checkpoint_dir=local) as context:
        with pytest.raises(DetcloudError, match="Both defines both of"):
            pytorch.Trainer(Both(context), context)
        with pytest.raises(DetcloudError, match="Neither defines neither of"):
            pytorch.Trainer(Neither(context), context)


def test_evaluate_full_dataset_runs_without_gradients(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class WholeSetTrial(LineTrial):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        def evaluate_full_dataset(self, data_loader: pytorch.DataLoader) -> dict[str, Any]:
            assert not torch.is_grad_enabled()
            assert not self.model.training
            return {"records": sum(len(batch[0]) for batch in data_loader)}

    with pytorch.init(checkpoint_dir=local) as context:
        pytorch.Trainer(WholeSetTrial(context), context).fit(
            max_length=Batch(1), step_zero_validation=True
        )
    assert "validation at batch 0: records=12" in capsys.readouterr().out


def test_evaluate_full_dataset_must_return_a_dict(local: Path) -> None:
    class WholeSetTrial(LineTrial):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        def evaluate_full_dataset(self, data_loader: pytorch.DataLoader) -> Any:
            return torch.ones(())

    with (
        pytest.raises(
            DetcloudError, match="evaluate_full_dataset returned a Tensor: expected a dict"
        ),
        pytorch.init(checkpoint_dir=local) as context,
    ):
        pytorch.Trainer(WholeSetTrial(context), context).fit(max_length=Batch(1))


def test_test_mode_evaluates_a_single_batch_of_the_full_dataset(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class WholeSetTrial(LineTrial):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        def build_validation_data_loader(self) -> pytorch.DataLoader:
            return self.build_training_data_loader()

        def evaluate_full_dataset(self, data_loader: pytorch.DataLoader) -> dict[str, Any]:
            return {"batches": len([*data_loader]), "promised": len(data_loader)}

    with pytorch.init(checkpoint_dir=local) as context:
        pytorch.Trainer(WholeSetTrial(context), context).fit(test_mode=True)
    assert "validation at batch 1: batches=1 promised=1" in capsys.readouterr().out


def test_fit_can_be_called_again(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytorch.init(checkpoint_dir=local) as context:
        trainer = pytorch.Trainer(LineTrial(context), context)
        for _ in range(2):
            trainer.fit(max_length=Batch(2))
    assert capsys.readouterr().out.count("training at batch 2") == 2


def test_build_callbacks_must_return_a_dict(local: Path) -> None:
    class ListingTrial(LineTrial):
        def build_callbacks(self) -> Any:
            return [pytorch.PyTorchCallback()]

    with (
        pytest.raises(DetcloudError, match="build_callbacks returned a list: expected a dict"),
        pytorch.init(checkpoint_dir=local) as context,
    ):
        pytorch.Trainer(ListingTrial(context), context).fit(max_length=Batch(2))


@pytest.mark.parametrize("period", [Batch(0), Epoch(-1), Batch(1.5), 3])  # type: ignore[arg-type]
def test_a_period_is_a_positive_count(local: Path, period: Any) -> None:
    with (
        pytest.raises(DetcloudError, match="is not a training length"),
        pytorch.init(checkpoint_dir=local) as context,
    ):
        pytorch.Trainer(LineTrial(context), context).fit(max_length=period)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    return tmp_path
