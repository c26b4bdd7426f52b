import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detcloud import DetcloudError, InvalidHP, core
from detcloud.core.context_builder import build_local_context
from detcloud.shared.trial_directory import Directives
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.core.trial_files import direct, enter, kinds, make_trial, reports


def test_import_of_detcloud_loads_no_heavy_module() -> None:
    script = (
        "import sys; before = set(sys.modules); import detcloud; detcloud.__version__; "
        "print(*sorted(set(sys.modules) - before)); detcloud.core; "
        "print(detcloud.__version__, 'detcloud.core' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    errors_and_version = "detcloud.shared detcloud.shared.errors detcloud.shared.version"
    assert done.stdout.splitlines() == [
        f"__future__ detcloud {errors_and_version}",
        "0.1.0 True False",
    ]


def test_an_unknown_attribute_of_detcloud_is_an_attribute_error() -> None:
    import detcloud

    # The name must be no module of the package, since an import would create the attribute.
    with pytest.raises(AttributeError, match="module 'detcloud' has no attribute 'sprockets'"):
        _ = detcloud.sprockets


def test_failed_release_skips_no_later_release() -> None:
    released: list[str] = []

    def part(name: str) -> Any:
        return SimpleNamespace(close=partial(released.append, name))

    def fail() -> None:
        released.append("events")
        raise OSError(28, "No space left on device")

    events: Any = SimpleNamespace(close=fail)
    train = core.TrainContext(lambda *_, **__: None, Directives, events)
    train.uploader = part("uploader")
    context = build_local_context(
        core.TrialSpec(), None, core.DistributedContext(), core.PreemptMode.ChiefOnly
    )
    parts = {name: part(name) for name in ("preempt", "distributed")}
    with pytest.raises(OSError, match="No space left on device"):
        replace(context, train=train, **parts).close()
    assert released == ["events", "uploader", "preempt", "distributed"]


def test_a_script_follows_the_searcher_and_exits_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, hparams={"rate": 0.5}, threads=1)
    direct(trial, revision=3, length=4, closed=True)
    enter(trial, monkeypatch)
    (trial / "code" / "model.py").write_text("x = 1")
    with core.init() as context:
        assert (context.info.trial_id, context.info.hparams) == (4, {"rate": 0.5})
        assert (context.distributed.rank, context.distributed.allgather(5)) == (0, [5])
        for operation in context.searcher.operations():
            context.train.report_validation_metrics(operation.length, {"loss": 1.0})
            operation.complete(1.0)
    assert kinds(trial) == ["metrics", "completed", "exit"]
    exit_line = reports(trial)[-1]
    assert (exit_line["reason"], exit_line["directive_revision"]) == ("completed", 3)


def test_the_environment_is_reported_before_the_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detcloud.core.trial_run.DESCRIBE_SECONDS_MAX", PROCESS_SECONDS_MAX)
    trial = make_trial(tmp_path, threads=1)
    enter(trial, monkeypatch)
    with core.init():
        pass
    (line,) = reports(trial, "environment")
    assert line["python"] == sys.version.split()[0]
    assert line["threads"] == 1
    assert any(package.startswith("pytest==") for package in line["packages"])
    # SHA-256 of nothing: the code directory is empty.
    assert line["code_sha256"].startswith("e3b0c44298fc1c14")
    assert set(line) >= {"torch", "devices", "hostname"}


def test_invalid_hyperparameters_exit_with_0_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    with pytest.raises(SystemExit) as ended, core.init():
        raise InvalidHP("too wide")
    assert ended.value.code == 0
    early, last = reports(trial)
    assert (early["kind"], early["reason"]) == ("early_exit", "INVALID_HP")
    assert (last["reason"], last["message"]) == ("invalid_hp", "InvalidHP: too wide")
    message = "[detcloud] hyperparameters refused (InvalidHP): too wide: the trial ends"
    assert capsys.readouterr().out.count(message) == 1


def test_an_exception_is_an_error_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    with pytest.raises(ZeroDivisionError), core.init():
        raise ZeroDivisionError("by nought")
    assert reports(trial)[-1]["message"] == "ZeroDivisionError: by nought"
    assert reports(trial)[-1]["reason"] == "errored"


@pytest.mark.parametrize(
    ("directives", "asks", "reason"),
    [
        ({"length": 5}, False, "stop_requested"),
        ({"length": 5, "preempt": {"deadline_ms": None}}, True, "preempted"),
        ({"length": 5, "preempt": {"deadline_ms": None}}, False, "stop_requested"),
        ({"length": 5, "answered": 5, "closed": True}, False, "completed"),
    ],
)
def test_exit_reason_of_a_script_that_returns(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    directives: dict[str, object],
    asks: bool,
    reason: str,
) -> None:
    trial = make_trial(tmp_path)
    direct(trial, revision=1, **directives)
    enter(trial, monkeypatch)
    with core.init() as context:
        if asks:
            assert context.preempt.should_preempt()
    assert reports(trial)[-1]["reason"] == reason


def test_sigterm_is_a_preemption_at_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    before = signal.getsignal(signal.SIGTERM)
    with core.init() as context:
        assert not context.preempt.should_preempt()
        signal.raise_signal(signal.SIGTERM)
        assert context.preempt.must_stop_at_next_batch()
    assert reports(trial)[-1]["reason"] == "preempted"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_stop_requested_by_the_code_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    with core.init() as context:
        context.train.report_early_exit(core.EarlyExitReason.USER_REQUESTED_STOP)
    assert kinds(trial) == ["early_exit", "exit"]
    assert reports(trial)[-1]["reason"] == "stop_requested"


def test_without_a_cluster_metrics_are_printed_and_checkpoints_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with core.init(hparams={"a": 1}) as context:
        assert not context.on_cluster
        assert not context.preempt.should_preempt()
        assert context.info.hparams == {"a": 1}
        context.train.report_validation_metrics(2, {"loss": 0.5})
        with context.checkpoint.store_path() as (folder, uuid):
            (folder / "weights").write_text("abc")
        assert [operation.length for operation in _complete_operations(context)] == [1]
    assert "validation at batch 2: loss=0.5" in capsys.readouterr().out
    assert (tmp_path / "detcloud" / "checkpoints" / f"0/0/0/{uuid}" / "weights").exists()


def test_an_unprintable_metric_name_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    screen = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    with contextlib.redirect_stdout(screen), core.init(checkpoint_dir=tmp_path) as context:
        context.train.report_training_metrics(2, {"λ": 1, "name": "\ud800"})
    assert screen.buffer.getvalue() == b"[detcloud] training at batch 2: ?=1 name=?\n"


def test_invalid_hyperparameters_exit_with_0_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DETCLOUD_TRIAL_DIR", raising=False)
    with pytest.raises(SystemExit) as end, core.init():
        raise InvalidHP("too wide")
    assert end.value.code == 0
    assert "the hyperparameters make no sense: too wide" in capsys.readouterr().out


@pytest.mark.parametrize("has_handler", [False, True])
def test_sigusr1_prints_the_stack_without_ending_the_process(has_handler: bool) -> None:
    # A handler set by the script is called, too.
    own = "signal.signal(signal.SIGUSR1, lambda *_: print('own'))" if has_handler else ""
    script = f"""
import os, signal
from detcloud import core
{own}
def train_slowly():
    os.kill(os.getpid(), signal.SIGUSR1)
with core.init():
    train_slowly()
print("ended")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={name: value for name, value in os.environ.items() if name != "DETCLOUD_TRIAL_DIR"},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=True,
    )
    assert "in train_slowly" in done.stderr
    assert done.stdout.split() == [*(["own"] if has_handler else []), "ended"]


@pytest.mark.parametrize(
    ("asks", "acknowledges", "reason"),
    [
        ({}, False, "preempted"),
        # Code that checks and then runs to its end has stopped the trial, as in Determined.
        ({"auto_ack": False}, False, "stop_requested"),
        ({"auto_ack": False}, True, "preempted"),
    ],
)
def test_preemption_requires_an_acknowledgement(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asks: dict[str, bool],
    acknowledges: bool,
    reason: str,
) -> None:
    trial = make_trial(tmp_path)
    direct(trial, revision=1, length=8, preempt={"reason": "pause"})
    enter(trial, monkeypatch)
    with core.init() as context:
        assert context.preempt.should_preempt(**asks)
        if acknowledges:
            context.preempt.acknowledge_preemption_signal()
    assert reports(trial)[-1]["reason"] == reason


def test_an_acknowledgement_without_a_request_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path)
    direct(trial, revision=1, length=8, closed=True)
    enter(trial, monkeypatch)
    with core.init() as context:
        context.preempt.acknowledge_preemption_signal()
        next(context.searcher.operations()).complete(0.5)
    assert reports(trial)[-1]["reason"] == "completed"


def test_alert_arguments_are_optional(capsys: pytest.CaptureFixture[str]) -> None:
    with core.init() as context:
        context.alert(None, "the disk is nearly full", None)
        with pytest.raises(ValueError, match="alert level 'loud' is unknown"):
            context.alert(level="loud")
    assert "alert (info): the disk is nearly full" in capsys.readouterr().err


def _complete_operations(context: core.Context) -> list[core.SearcherOperation]:
    operations = []
    for operation in context.searcher.operations():
        operation.complete(1)
        operations.append(operation)
    return operations


def test_allgather_without_a_launcher_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, rank=1, size=2, node_rank=1, nodes=2)
    direct(trial, revision=3, length=4, closed=True)
    enter(trial, monkeypatch)
    with core.init() as context:
        ranks = context.distributed
        assert (ranks.rank, ranks.size, ranks.local_rank, ranks.cross_size) == (1, 2, 0, 2)
        with pytest.raises(DetcloudError, match="over the 2 processes of this trial: start them"):
            ranks.allgather(5)


def test_a_worker_reports_alerts_metadata_and_rank_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    with core.init(distributed=core.DistributedContext(rank=1, size=2)) as context:
        context.alert("loss", "is not a number", "warn")
        context.train.report_progress(0.5)
        context.train.report_progress(0.6)
        context.train.set_metadata({"seen": 3})
        context.train.report_validation_metrics(1, {"loss": 0.5})
    printed = capfd.readouterr()
    assert "[detcloud] alert (warn): loss: is not a number\n" in printed.err
    # Only the chief reports progress; the note is printed once.
    assert printed.out.count("[detcloud] the progress reported by this process is ignored") == 1
    text = (trial / "out" / "report-1.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    kinds = [line["kind"] for line in lines if line["kind"] != "exit"]
    assert kinds == ["alert", "trial_metadata", "rank_metrics"]
    alert = {name: lines[0][name] for name in ("title", "description", "level")}
    assert alert == {"title": "loss", "description": "is not a number", "level": "warn"}


@pytest.mark.parametrize("is_raised", [True, False])
def test_any_rank_may_refuse_the_hyperparameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_raised: bool
) -> None:
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    ranks = core.DistributedContext(rank=1, size=2, local_rank=1, local_size=2)
    with contextlib.suppress(SystemExit), core.init(distributed=ranks) as context:
        if is_raised:
            raise InvalidHP("too wide")
        context.train.report_early_exit("INVALID_HP")
    path = trial / "out" / "report-1.jsonl"
    early, last = [json.loads(line) for line in path.read_text().splitlines()]
    assert (early["kind"], early["reason"]) == ("early_exit", "INVALID_HP")
    assert (last["kind"], last["reason"]) == ("exit", "invalid_hp")
    assert last.get("message") == ("InvalidHP: too wide" if is_raised else None)
    assert not (trial / "out" / "report-0.jsonl").exists()
