"""Checkpoints that are stored in the background: in order, and complete or not at all."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError, core
from detcloud.core.available_memory import available_bytes
from detcloud.core.distributed_context import DistributedContext
from detcloud.shared.trial_directory import TrialSpec
from detcloud.storage.types.directory import DirectoryStore
from tests.patience import ANSWER_SECONDS_MAX, wait_until
from tests.unit.core.held_store import HeldStore, held_storage, held_store
from tests.unit.core.trial_files import direct, enter, kinds, make_trial, reports


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HeldStore]:
    held = held_store(tmp_path / "store")
    yield held
    held.may_store.set()


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    trial = make_trial(tmp_path, metric="loss", storage=held_storage(tmp_path / "store"))
    direct(trial, revision=1, length=10, closed=True)
    enter(trial, monkeypatch)
    return trial


def save(context: core.Context, steps: int, name: str = "weights") -> str:
    metadata = {"steps_completed": steps}
    with context.checkpoint.store_path(metadata, asynchronous=True) as (folder, uuid):
        (folder / name).write_text(f"weights of batch {steps}")
    return uuid


def test_training_continues_while_a_checkpoint_is_stored(store: HeldStore, trial: Path) -> None:
    with core.init() as context:
        for operation in context.searcher.operations():
            uuid = save(context, 5)
            wait_until(lambda: (trial / "out" / "report-0.jsonl").exists() and kinds(trial))
            context.train.report_training_metrics(6, {"loss": 1.0})
            assert kinds(trial) == ["checkpoint_intent", "metrics"]
            store.may_store.set()
            # Restoring waits for the upload.
            with context.checkpoint.restore_path(uuid) as folder:
                assert (folder / "weights").read_text() == "weights of batch 5"
            operation.complete(1.0)
    expected = ["checkpoint_intent", "metrics", "checkpoint", "completed", "exit"]
    assert kinds(trial) == expected
    assert list(Path(store.root / "3").rglob("manifest.json"))


def test_completion_waits_for_the_background_checkpoint(store: HeldStore, trial: Path) -> None:
    with core.init() as context:
        for operation in context.searcher.operations():
            save(context, 10)
            context.train.report_validation_metrics(10, {"loss": 0.5})
            threading.Timer(0.05, store.may_store.set).start()
            operation.complete(0.5)
    assert kinds(trial)[-3:] == ["checkpoint", "completed", "exit"]


def test_a_second_background_save_waits_for_the_first(store: HeldStore, trial: Path) -> None:
    with core.init() as context:
        save(context, 5)
        began = threading.Event()

        def save_again() -> None:
            began.set()
            save(context, 7)

        second = threading.Thread(target=save_again)
        second.start()
        assert began.wait(ANSWER_SECONDS_MAX)
        second.join(0.1)
        assert second.is_alive()
        store.may_store.set()
        second.join(ANSWER_SECONDS_MAX)
    # The end of the block waits for the second upload, too.
    lines = [(line["kind"], line["steps_completed"]) for line in reports(trial)[:-1]]
    assert lines == [
        ("checkpoint_intent", 5),
        ("checkpoint", 5),
        ("checkpoint_intent", 7),
        ("checkpoint", 7),
    ]


def test_a_background_checkpoint_keeps_the_metric_of_its_batch(
    store: HeldStore, trial: Path
) -> None:
    with core.init() as context:
        context.train.report_validation_metrics(4, {"loss": 0.25, "other": 9.0})
        save(context, 4)
        context.train.report_validation_metrics(8, {"loss": 0.125})
        store.may_store.set()
        save(context, 9)
    [validated, unknown] = reports(trial, "checkpoint")
    assert validated["metric"] == 0.25
    assert "metric" not in unknown


NEXT_CALLS: dict[str, Callable[[core.Context], object]] = {
    "report": lambda context: context.train.report_training_metrics(6, {"loss": 1.0}),
    "save": lambda context: save(context, 6),
    "wait": lambda context: context.checkpoint.wait(),
    "end": lambda context: None,
    "exit": lambda context: exit(0),
}


@pytest.mark.parametrize("call", NEXT_CALLS)
def test_a_failed_background_save_fails_the_trial(store: HeldStore, trial: Path, call: str) -> None:
    store.may_store.set()

    def train() -> None:
        with core.init() as context:
            save(context, 5, "refused")
            if call == "report":
                wait_until(lambda: context.checkpoint.saves.running is None)
            NEXT_CALLS[call](context)

    with pytest.raises(DetcloudError, match="at batch 5 was not stored: the bucket is full"):
        train()
    end = reports(trial)[-1]
    assert (end["kind"], end["reason"]) == ("exit", "errored")
    assert "the previous checkpoint is still the latest" in end["message"]
    assert reports(trial, "checkpoint") == []
    # Files stored before the failure were deleted.
    assert [path for path in store.root.rglob("*") if path.is_file()] == []


def test_an_abandoned_upload_does_not_fail_the_trial(store: HeldStore, trial: Path) -> None:
    with core.init() as context:
        save(context, 5, "refused")
        context.checkpoint.saves.abandon()
        store.may_store.set()
        wait_until(lambda: context.checkpoint.saves.running is None)
        context.train.report_training_metrics(6, {"loss": 1.0})
    assert [line["reason"] for line in reports(trial, "exit")] == ["stop_requested"]


def test_a_code_error_is_reported_after_the_running_checkpoint(
    store: HeldStore, trial: Path
) -> None:
    def train() -> None:
        with core.init() as context:
            save(context, 5)
            threading.Timer(0.05, store.may_store.set).start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert kinds(trial) == ["checkpoint_intent", "checkpoint", "exit"]
    assert reports(trial)[-1]["reason"] == "errored"


@pytest.mark.parametrize("fails", [False, True])
def test_background_shards_complete_after_all_ranks_stored(
    fails: bool, run_ranks: Any, tmp_path: Path
) -> None:
    reported: list[str] = []
    store = HeldStore(tmp_path / "store")
    all_ranks = threading.Barrier(3)

    def work(ranks: DistributedContext) -> str:
        def report(kind: str, **_: object) -> None:
            if ranks.rank == 0:
                reported.append(kind)

        checkpoint = core.CheckpointContext(
            TrialSpec(trial_id=2, epoch=3), store, report, on_cluster=True, distributed=ranks
        )
        metadata = {"steps_completed": 7}
        with checkpoint.store_path(metadata, shard=True, asynchronous=True) as (folder, _):
            name = "refused" if fails and ranks.rank == 2 else f"weights{ranks.rank}"
            (folder / name).write_text(str(ranks.rank))
        # The processes exchange values meanwhile.
        assert ranks.allgather(ranks.rank) == [0, 1, 2]
        assert "checkpoint" not in reported
        all_ranks.wait(ANSWER_SECONDS_MAX)
        store.may_store.set()
        try:
            checkpoint.wait()
        except DetcloudError as error:
            return str(error)
        return ""

    [failure] = set(run_ranks(work))
    stored = {path.name for path in store.root.rglob("*") if path.is_file()}
    if fails:
        assert "was not stored: rank 2: the bucket is full; the previous checkpoint" in failure
        assert (stored, reported) == (set(), ["checkpoint_intent"])
    else:
        shards = {f"weights{rank}" for rank in range(3)}
        assert (failure, stored) == ("", {"manifest.json", "metadata.json", *shards})
        assert reported == ["checkpoint_intent", "checkpoint"]


def test_a_rank_that_raises_fails_the_background_save_on_all_ranks(
    run_ranks: Any, tmp_path: Path
) -> None:
    def work(ranks: DistributedContext) -> str:
        checkpoint = core.CheckpointContext(
            TrialSpec(), DirectoryStore(tmp_path), lambda *_, **__: None, on_cluster=True,
            distributed=ranks,
        )  # fmt: skip
        metadata = {"steps_completed": 7}
        try:
            with checkpoint.store_path(metadata, shard=True, asynchronous=True) as (folder, _):
                (folder / str(ranks.rank)).touch()
                if ranks.rank == 1:
                    raise ZeroDivisionError("by nought")
            checkpoint.wait()
        except (DetcloudError, ZeroDivisionError) as error:
            checkpoint.finish()
            return f"{type(error).__name__}: {error}"
        return "stored"

    refused = "DetcloudError: the checkpoint was not stored: rank 1: ZeroDivisionError: by nought"
    assert run_ranks(work) == [refused, "ZeroDivisionError: by nought", refused]


def test_free_memory_is_the_minimum_of_machine_and_cgroups(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    assert available_bytes(tmp_path) == 4_000 * 1024
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:cpu,memory:/deep/one\n0::/deep/one\n")
    unified = tmp_path / "sys" / "fs" / "cgroup"
    (unified / "deep" / "one").mkdir(parents=True)
    (unified / "deep" / "one" / "memory.max").write_text("max\n")
    (unified / "deep" / "memory.max").write_text("1000000\n")
    (unified / "deep" / "memory.current").write_text("700000\n")
    (unified / "deep" / "memory.stat").write_text("anon 9\ninactive_file 50000\n")
    # 1,000,000 - 700,000 and the 50,000 of inactive files.
    assert available_bytes(tmp_path) == 350_000
    former = unified / "memory"
    former.mkdir()
    (former / "memory.limit_in_bytes").write_text("200000\n")
    (former / "memory.usage_in_bytes").write_text("150000\n")
    (former / "memory.stat").write_text("total_inactive_file 1000\n")
    assert available_bytes(tmp_path) == 51_000
