import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from detcloud import DetcloudError
from detcloud.pytorch.batch_process import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
    torch_batch_process,
)
from tests.patience import wait_until
from tests.unit.core.trial_files import direct, enter, make_trial, reports

# 6 batches of 2 records and a last batch of 1 record.
RECORDS: Any = list(range(13))
LENGTH = 7


class Sums(TorchBatchProcessor):
    """Batch processor that sums the records of a batch and stores the sums before checkpoints."""

    def __init__(self, context: TorchBatchProcessorContext) -> None:
        self.context = context
        self.after_batch: Callable[[Sums, int], None] = lambda _sums, _steps: None
        self.log: list[str] = []
        self.records: Any = context.wrap_reducer(sum, name="records")
        self.sums: dict[int, int] = {}

    def process_batch(self, batch: Any, batch_idx: int) -> None:
        self.records.update(len(batch))
        self.sums[batch_idx] = int(batch.sum())
        self.after_batch(self, batch_idx + 1)

    def on_checkpoint_start(self) -> None:
        self.log.append(f"C{max(self.sums, default=-1) + 1}")
        with self.context.upload_path() as folder:
            (folder / "part").mkdir()
            for index, value in self.sums.items():
                (folder / "part" / f"{index}.txt").write_text(str(value))
        self.sums = {}

    def on_finish(self) -> None:
        self.log.append("end")


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = make_trial(tmp_path, metric="records")
    enter(made, monkeypatch)
    direct(made, revision=1, length=1 << 53)
    return made


def process(
    after_batch: Callable[[Sums, int], None] = lambda _sums, _steps: None, **options: Any
) -> list[str]:
    """Process the records, and return the log of the processor."""
    logs: list[list[str]] = []

    class LoggedSums(Sums):
        def __init__(self, context: TorchBatchProcessorContext) -> None:
            super().__init__(context)
            self.after_batch = after_batch
            logs.append(self.log)

    torch_batch_process(LoggedSums, RECORDS, batch_size=2, checkpoint_interval=3, **options)
    [log] = logs
    return log


def outputs(root: Path) -> dict[str, str]:
    """Return the stored outputs by path from `rank_` on."""
    stored = {}
    for path in root.glob("store/3/4/*/outputs/*/rank_*/**/*.txt"):
        stored["rank_" + path.as_posix().partition("/rank_")[2]] = path.read_text()
    return stored


def test_batch_process_covers_the_data_set_once(trial: Path, tmp_path: Path) -> None:
    log = process()
    # A checkpoint every three batches and at the end.
    assert log == ["C3", "C6", "C7", "end"]
    steps = [line["steps_completed"] for line in reports(trial, "checkpoint")]
    assert steps == [3, 6, LENGTH]
    # Batch n has the records 2n and 2n + 1; the last batch has only record 12.
    assert outputs(tmp_path) == {
        f"rank_0/part/{n}.txt": str(4 * n + 1 if n < 6 else 12) for n in range(LENGTH)
    }
    (metrics,) = reports(trial, "metrics")
    assert metrics["group"] == "validation"
    assert metrics["steps_completed"] == LENGTH
    assert metrics["metrics"] == {"records": len(RECORDS)}
    assert [line["metric"] for line in reports(trial, "completed")] == [13.0]
    assert reports(trial, "exit")[0]["reason"] == "completed"


@pytest.mark.parametrize(
    ("preempt", "stop"),
    [
        # Stops at the next checkpoint without a deadline, immediately with a deadline.
        ({}, 6),
        ({"deadline_ms": 1}, 5),
    ],
)
def test_a_stopped_batch_process_continues_with_the_next_batch(
    trial: Path,
    tmp_path: Path,
    preempt: dict[str, int],
    stop: int,
) -> None:
    def ask_to_stop(sums: Sums, steps: int) -> None:
        if steps == 5:
            direct(trial, revision=2, length=1 << 53, preempt={"reason": "pause", **preempt})
            wait_until(sums.context.core.preempt.is_requested)

    log = process(ask_to_stop)
    last = reports(trial, "checkpoint")[-1]
    assert last["steps_completed"] == stop
    assert reports(trial, "exit")[0]["reason"] == "preempted"
    assert "end" not in log

    fields = ("uuid", "path", "steps_completed", "manifest_sha256")
    latest = {"trial_id": 4, **{name: last[name] for name in fields}}
    make_trial(tmp_path, metric="records", epoch=2, latest_checkpoint=latest)
    direct(trial, revision=3, length=1 << 53)
    assert process()[-2:] == ["C7", "end"]
    numbers = sorted(name.rpartition("/")[2] for name in outputs(tmp_path))
    assert numbers == [f"{n}.txt" for n in range(LENGTH)]
    # Each run reports its own batches.
    assert [line["metrics"]["records"] for line in reports(trial, "metrics")] == [
        2 * stop,
        len(RECORDS) - 2 * stop,
    ]
    assert reports(trial, "exit")[-1]["reason"] == "completed"


def test_several_slots_require_several_processes(trial: Path, tmp_path: Path) -> None:
    make_trial(tmp_path, slots=[0, 1])
    with pytest.raises(DetcloudError, match="2 slots and this is its only process"):
        process()


def test_a_checkpoint_of_more_processes_is_refused(trial: Path, tmp_path: Path) -> None:
    process(max_batches=1)
    [stored] = reports(trial, "checkpoint")
    manifest = tmp_path / "store" / stored["path"] / "manifest.json"
    content = json.loads(manifest.read_text())
    content["metadata"]["workers"] = 2
    manifest.write_text(json.dumps(content))
    latest = {"trial_id": 4, **{name: stored[name] for name in ("uuid", "path")}}
    make_trial(tmp_path, metric="records", epoch=2, latest_checkpoint=latest)
    message = f"{stored['uuid']} was saved by 2 processes, and this run has 1"
    with pytest.raises(DetcloudError, match=message):
        process()


def test_repeated_output_names_get_a_number(trial: Path, tmp_path: Path) -> None:
    class SameName(Sums):
        def on_checkpoint_start(self) -> None:
            with self.context.upload_path() as folder:
                (folder / "sum.txt").write_text(str(sum(self.sums.values())))

    torch_batch_process(SameName, RECORDS, batch_size=5, checkpoint_interval=1, max_batches=2)
    # 0 + ... + 4 = 10, and 0 + ... + 9 = 45.
    assert outputs(tmp_path) == {"rank_0/sum.txt": "10", "rank_0/sum-2.txt": "45"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataloader_kwargs": {"shuffle": True}}, "has shuffle"),
        ({"dataloader_kwargs": {"sampler": [1]}}, "has sampler"),
        ({"dataloader_kwargs": {"batch_size": 3}}, "batch_size is given twice"),
    ],
)
def test_unsupported_loader_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DetcloudError, match=message):
        process(**options)


def test_a_data_set_without_a_length_is_refused() -> None:
    records: Any = iter(RECORDS)
    with pytest.raises(DetcloudError, match="iterator has no length"):
        torch_batch_process(Sums, records)


def test_outputs_without_a_cluster_lie_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    process(max_batches=1)
    (stored,) = tmp_path.glob("detcloud/checkpoints/0/0/0/outputs/*/rank_0/part/*")
    assert (stored.name, stored.read_text()) == ("0.txt", "1")


def test_a_model_is_prepared_for_inference(trial: Path) -> None:
    class ModelProcessor(Sums):
        def __init__(self, context: TorchBatchProcessorContext) -> None:
            super().__init__(context)
            model = context.prepare_model_for_inference(torch.nn.Dropout())
            assert not model.training
            assert context.get_hparams() == {}
            assert (context.get_distributed_rank(), context.get_distributed_size()) == (0, 1)
            with pytest.raises(DetcloudError, match="set_metadata"):
                context.report_task_using_checkpoint(None)

    torch_batch_process(ModelProcessor, RECORDS, dataloader_kwargs={"batch_size": 13})
    assert reports(trial, "checkpoint")[0]["metadata"]["workers"] == 1
