"""Determined's `core.init` and `core_v2`: units of lengths, cluster info, and exits of trials."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError
from detcloud.compatibility import core, core_v2
from detcloud.compatibility.cluster_info import get_cluster_info
from detcloud.core.framework_loop import FrameworkLoop
from tests.patience import ANSWER_SECONDS_MAX, PROCESS_SECONDS_MAX
from tests.unit.core.trial_files import direct, enter, kinds, make_trial, reports

ROOT = Path(__file__).resolve().parents[3]


def trial_of(folder: Path, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> Path:
    trial = make_trial(folder, **spec)
    direct(trial, revision=1, length=24, length_units=3, closed=True, answered=0)
    enter(trial, monkeypatch)
    return trial


def config_of(max_length: object) -> dict[str, Any]:
    return {"searcher": {"name": "single", "metric": "loss", "max_length": max_length}}


def test_an_operation_uses_configured_units_and_reports_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 3 epochs of 512 records in batches of 64 are 3 * 512 / 64 = 24 batches.
    trial = trial_of(tmp_path, monkeypatch, config=config_of({"epochs": 3}))
    with core.init() as context:
        searcher: Any = context.searcher
        assert searcher.get_configured_units() is core.Unit.EPOCHS
        for operation in searcher.operations():
            assert operation.length == 3
            operation.report_progress(1.5)
            operation.report_completed(0.25)
    (progress,) = reports(trial, "progress")
    assert progress["value"] == 0.5
    (completed,) = reports(trial, "completed")
    assert (completed["length"], completed["metric"]) == (24, 0.25)
    assert kinds(trial)[-1] == "exit"


def test_an_unconverted_operation_in_epochs_reports_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_of(tmp_path, monkeypatch, config=config_of({"epochs": 3}))
    direct(trial, revision=2, length=3, length_units=3, length_unit="epochs", closed=True)
    with core.init() as context:
        searcher: Any = context.searcher
        assert searcher.get_configured_units() is core.Unit.EPOCHS
        for operation in searcher.operations():
            assert operation.length == 3
            operation.report_progress(1.5)
            operation.report_completed(0.25)
    assert reports(trial, "progress")[0]["value"] == 0.5
    assert reports(trial, "completed")[0]["length"] == 3


@pytest.mark.parametrize(
    ("options", "unit"),
    [
        ({"max_length": {"records": 300}}, core.Unit.RECORDS),
        ({"max_length": {"batches": 3}}, core.Unit.BATCHES),
        ({"max_length": 3}, None),
        ({"name": "pbt", "length_per_round": {"epochs": 2}}, core.Unit.EPOCHS),
        ({"name": "custom", "unit": "epochs"}, core.Unit.EPOCHS),
        ({"name": "custom", "unit": None}, None),
    ],
)
def test_configured_unit_comes_from_the_searchers_length(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    unit: core.Unit | None,
) -> None:
    trial_of(tmp_path, monkeypatch, config={"searcher": options})
    with core.init() as context:
        searcher: Any = context.searcher
        assert searcher.get_configured_units() is unit


def test_a_script_on_several_slots_requires_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial_of(tmp_path, monkeypatch, slots=[0, 1])
    with pytest.raises(DetcloudError, match=r"2 slots .*python3 -m determined\.launch\.torch"):
        core.init().__enter__()


def test_cluster_info_has_determineds_attribute_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial_of(
        tmp_path,
        monkeypatch,
        agent_id="a-1",
        epoch=2,
        steps_completed=8,
        slots=[1],
        hparams={"lr": 1},
        config={**config_of(3), "data": {"url": "u"}, "debug": True},
        latest_checkpoint={"uuid": "c-1", "trial_id": 4, "steps_completed": 8, "path": "3/4/1/c-1"},
    )
    info = get_cluster_info()
    assert info is not None
    assert info.trial is info._trial_info
    assert (info.agent_id, info.latest_checkpoint, info.user_data) == ("a-1", "c-1", {"url": "u"})
    assert (info.trial._steps_completed, info.trial._trial_run_id, info.trial._debug) == (
        8,
        2,
        True,
    )
    assert (info.container_slot_counts, info.container_rank) == ([1], 0)
    with core.init() as context:
        # An adapter reads the trial's specification from the context.
        facts: Any = context.info
        assert facts.trial_id == facts.trial.trial_id == 4
        assert facts.metric == "validation_loss"


def test_checkpoint_storage_of_a_script_is_used_only_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with core.init(checkpoint_storage=str(tmp_path / "kept")) as context:
        context.checkpoint.upload(tmp_path, {"steps_completed": 1})
    assert list((tmp_path / "kept").rglob("manifest.json"))
    with pytest.raises(DetcloudError, match="expected a folder"):
        core.init(checkpoint_storage="s3://bucket").__enter__()
    trial_of(tmp_path, monkeypatch)
    with core.init(checkpoint_storage=str(tmp_path / "other")):
        pass
    assert "checkpoint_storage=...) is not used" in capsys.readouterr().out


def test_core_v2_is_the_core_api_of_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = trial_of(tmp_path, monkeypatch)
    core_v2.init(defaults=core_v2.DefaultConfig(name="other"))
    assert core_v2.train is not None
    assert core_v2.info.trial.trial_id == 4
    core_v2.train.report_validation_metrics(steps_completed=3, metrics={"loss": 0.5})
    core_v2.close()
    assert core_v2.train is None
    assert kinds(trial) == ["metrics", "exit"]
    assert "given to core_v2 is not used" in capsys.readouterr().out


def test_core_v2_creates_no_experiment() -> None:
    with pytest.raises(DetcloudError, match="submit the code with `detcloud create`"):
        core_v2.init(config=core_v2.Config(name="alone"))


def test_a_script_that_fails_before_closing_core_v2_is_errored(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\nfrom determined.experimental import core_v2\n"
        "core_v2.init()\ncore_v2.train.report_training_metrics(1, {'loss': 1.0})\nsys.exit(3)\n"
    )
    trial = make_trial(tmp_path / "run", entrypoint=[sys.executable, "train.py"])
    done = subprocess.run(
        [sys.executable, "-m", "detcloud.launch.trial"],
        cwd=tmp_path,
        env={
            **os.environ,
            "DETCLOUD_TRIAL_DIR": str(trial),
            "PYTHONPATH": str(ROOT / "harness"),
        },
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert [(line["kind"], line.get("reason")) for line in reports(trial)] == [
        ("metrics", None),
        ("exit", "errored"),
    ]


def test_scripts_of_0_17_use_the_names_of_0_17(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_of(tmp_path, monkeypatch, config=config_of({"epochs": 3}))
    with core.init() as context:
        old: Any = context
        for operation in old.searcher.ops():
            old.training.report_training_metrics(latest_batch=24, metrics={"loss": 0.5})
            old.training.report_validation_metrics(latest_batch=24, metrics={"loss": 0.25})
            with old.checkpointing.store_path({"latest_batch": 24}) as (folder, uuid):
                (folder / "state").write_text("24")
            assert old.checkpointing.get_metadata(uuid)["latest_batch"] == 24
            assert old.preemption.should_preempt() is False
            operation.complete(0.25)
    assert [line["steps_completed"] for line in reports(trial, "metrics")] == [24, 24]
    (checkpoint,) = reports(trial, "checkpoint")
    assert checkpoint["steps_completed"] == 24
    (completed,) = reports(trial, "completed")
    assert completed["metric"] == 0.25


def test_private_method_report_trial_metrics_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_of(tmp_path, monkeypatch, config=config_of({"epochs": 3}))
    with core.init() as context:
        script: Any = context
        script.train._report_trial_metrics("logger", 8, {"loss": 0.5})
    (report,) = reports(trial, "metrics")
    assert (report["group"], report["steps_completed"]) == ("logger", 8)


def test_missing_context_members_name_a_replacement(tmp_path: Path) -> None:
    with core.init(checkpoint_storage=str(tmp_path)) as context:
        script: Any = context
        with pytest.raises(AttributeError, match=r"experimental is not supported .*set_metadata"):
            script.experimental.report_task_using_checkpoint("c")
        with pytest.raises(AttributeError, match=r"get_tensorboard_path\(\) are stored"):
            script._tensorboard_manager.sync()
        with pytest.raises(AttributeError, match="'Context' object has no attribute 'other'"):
            _ = script.other
        # Without a cluster, no search can refuse the value.
        next(script.searcher.operations()).report_completed({"loss": 1.0})


def test_dummy_init_is_refused_within_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    context = core.dummy_init(checkpoint_storage=str(tmp_path / "kept"), tensorboard_path=tmp_path)
    with context:
        context.checkpoint.upload(tmp_path, {"steps_completed": 1})
    assert list((tmp_path / "kept").rglob("manifest.json"))
    assert "tensorboard_path=...) is not used" in capsys.readouterr().out
    trial_of(tmp_path / "trial", monkeypatch)
    with pytest.raises(DetcloudError, match=r"call core\.init\(\) instead"):
        core.dummy_init()


def test_framework_loop_counts_batches_in_a_determined_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_of(tmp_path, monkeypatch, config=config_of({"epochs": 3}))
    with core.init() as context:
        # 3 epochs are 24 batches.
        loop = FrameworkLoop(context)
        assert loop.operation is not None
        assert loop.operation.length == 24
        assert not loop.is_unfinished
        loop.report_validation(24, {"validation_loss": 0.5})
        assert not loop.complete({"validation_loss": 0.5})
        assert loop.has_ended
    (completed,) = reports(trial, "completed")
    assert (completed["length"], completed["metric"]) == (24, 0.5)


def test_only_processes_on_several_nodes_need_chief_ip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCLOUD_GANG_FOLDER", str(tmp_path))
    monkeypatch.delenv("MASTER_PORT", raising=False)
    gathered: list[Any] = [None, None]

    def be_rank(rank: int) -> None:
        ranks = core.DistributedContext(
            rank=rank, size=2, local_rank=rank, local_size=2, cross_rank=0, cross_size=1
        )
        gathered[rank] = ranks.allgather(rank)
        ranks.close()

    worker = threading.Thread(target=be_rank, args=(1,))
    worker.start()
    be_rank(0)
    worker.join(ANSWER_SECONDS_MAX)
    assert gathered == [[0, 1], [0, 1]]
    with pytest.raises(AssertionError, match="processes on several nodes need chief_ip"):
        core.DistributedContext(
            rank=0, size=2, local_rank=0, local_size=1, cross_rank=0, cross_size=2
        )
    assert core.DistributedContext().gather("x") == ["x"]
