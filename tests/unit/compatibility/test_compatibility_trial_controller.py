import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from detcloud import DetcloudError
from detcloud.compatibility import checks
from detcloud.compatibility.controller_loop import Trainer, init
from detcloud.compatibility.trial_controller import Trial, TrialContext, TrialController
from detcloud.compatibility.util_functions import make_metrics, wrap_metrics
from tests.patience import wait_until
from tests.unit.core.trial_files import direct, enter, make_trial, reports

SPEC: dict[str, Any] = {
    "hparams": {"global_batch_size": 4, "base": 0.5},
    "config": {"searcher": {"metric": "error"}},
    "scheduling_unit": 5,
    "min_validation_batches": 10,
    "checkpoint_policy": "none",
    "metric": "error",
}


class Counting(TrialController):
    """Controller as of 0.12 to 0.16 that counts steps, and creates the checkpoint folder."""

    def __init__(self, prof: Any, context: Any, env: Any, workloads: Any, load_path: Any) -> None:
        super().__init__(context, env, workloads, prof=prof, load_path=load_path)
        self.after_step: Callable[[int], None] = lambda _step_id: None
        assert self.load_path is None
        self.steps: Counter[int] = Counter()

    @staticmethod
    def from_trial(
        trial_inst: Any, prof: Any, context: Any, env: Any, workloads: Any, load_path: Any
    ) -> "Counting":
        controller: Counting = trial_inst.adopt(Counting(prof, context, env, workloads, load_path))
        return controller

    @staticmethod
    def pre_execute_hook(env: Any, hvd_config: Any) -> None:
        assert env.experiment_config.get_searcher_metric() == "error"

    def train_for_step(self, step_id: int, num_batches: int) -> dict[str, Any]:
        self.steps[step_id] += num_batches
        self.after_step(step_id)
        metrics = {"loss": self.env.hparams["base"] ** step_id, "words": "none"}
        size = self.context.get_per_slot_batch_size() * num_batches
        stop = self.context.get_stop_requested()
        return wrap_metrics(make_metrics(size, [metrics] * num_batches), stop)

    def compute_validation_metrics(self, step_id: int) -> dict[str, Any]:
        return {"metrics": {"validation_metrics": {"error": sum(self.steps.values())}}}

    def save(self, path: Path) -> None:
        path.mkdir()
        (path / "steps").write_text(json.dumps(self.steps))

    def load(self, path: Path) -> None:
        self.steps = Counter(
            {int(k): v for k, v in json.loads((path / "steps").read_text()).items()}
        )


class CountingTrial(Trial):
    """Trial that knows its controller, and is called after the controller's steps."""

    trial_controller_class: ClassVar[Any] = Counting
    controller: Any

    def __init__(self, context: Any) -> None:
        self.context = context

    def adopt(self, controller: Any) -> Any:
        """Set and return the controller."""
        controller.after_step = self.after_step
        self.controller = controller
        return controller

    def after_step(self, step_id: int) -> None:
        """Do nothing by default."""


class Looping(Counting):
    """Controller as of 0.17 and later: keyword arguments, and an existing checkpoint folder."""

    def __init__(self, **options: Any) -> None:
        TrialController.__init__(self, **options)
        assert self.workloads is not None
        self.steps = Counter()

    @staticmethod
    def from_trial(trial_inst: Any, *args: Any, **options: Any) -> "Looping":
        controller: Looping = trial_inst.adopt(Looping(*args, **options))
        return controller

    def run(self) -> None:
        raise AssertionError("detcloud never calls the controller's own loop")

    def save(self, path: Path) -> None:
        (path / "steps").write_text(json.dumps(self.steps))


class LoopingContext(TrialContext):
    pass


class LoopingTrial(CountingTrial):
    trial_controller_class = Looping
    trial_context_class = LoopingContext


def train(kind: type[CountingTrial]) -> Any:
    """Train a trial, and return the trial's controller."""
    with init() as context:
        trial = kind(context)
        Trainer(trial, context).fit()
        return trial.controller


def test_a_controller_requires_records_per_epoch_for_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, **SPEC)
    direct(trial, revision=1, length=3, length_unit="epochs", closed=True)
    enter(trial, monkeypatch)
    with pytest.raises(DetcloudError, match="set records_per_epoch in the configuration"):
        train(CountingTrial)


@pytest.mark.parametrize("kind", [CountingTrial, LoopingTrial])
def test_a_controller_gets_train_validate_and_checkpoint_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[CountingTrial]
) -> None:
    trial = make_trial(tmp_path, **SPEC)
    enter(trial, monkeypatch)
    direct(trial, revision=1, length=12, closed=True)
    controller = train(kind)
    # Steps end at batches 5, 10 and 12.
    assert controller.steps == {1: 5, 2: 5, 3: 2}
    metrics = [
        (line["group"], line["steps_completed"], line["metrics"])
        for line in reports(trial, "metrics")
    ]
    assert metrics == [
        ("training", 5, {"loss": 0.5, "words": None}),
        ("training", 10, {"loss": 0.25, "words": None}),
        ("validation", 10, {"error": 10}),
        ("training", 12, {"loss": 0.125, "words": None}),
        ("validation", 12, {"error": 12}),
    ]
    assert [line["metric"] for line in reports(trial, "completed")] == [12.0]
    assert [line["steps_completed"] for line in reports(trial, "checkpoint")] == [12]
    assert reports(trial, "exit")[0]["reason"] == "completed"


def test_a_controller_resumes_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, **SPEC)
    enter(trial, monkeypatch)
    direct(trial, revision=1, length=12, closed=True)

    class PausedTrial(CountingTrial):
        def after_step(self, step_id: int) -> None:
            if step_id == 1:
                direct(trial, revision=2, length=12, closed=True, preempt={"reason": "pause"})
                wait_until(self.context.core.preempt.is_requested)

    train(PausedTrial)
    assert reports(trial, "exit")[0]["reason"] == "preempted"
    (last,) = reports(trial, "checkpoint")
    assert last["steps_completed"] == 5

    latest = {"trial_id": 4, **{name: last[name] for name in ("uuid", "path", "steps_completed")}}
    make_trial(tmp_path, **SPEC, epoch=2, latest_checkpoint=latest)
    direct(trial, revision=3, length=12, closed=True)
    assert train(CountingTrial).steps == {1: 5, 2: 5, 3: 2}
    assert reports(trial, "exit")[-1]["reason"] == "completed"


def test_a_controller_may_request_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping(Looping):
        @staticmethod
        def from_trial(trial_inst: Any, *args: Any, **options: Any) -> "Stopping":
            controller: Stopping = trial_inst.adopt(Stopping(*args, **options))
            return controller

        def train_for_step(self, step_id: int, num_batches: int) -> dict[str, Any]:
            self.context.set_stop_requested(True)
            return super().train_for_step(step_id, num_batches)

    class StoppingTrial(CountingTrial):
        trial_controller_class = Stopping

    trial = make_trial(tmp_path, **SPEC)
    enter(trial, monkeypatch)
    direct(trial, revision=1, length=12, closed=True)
    assert train(StoppingTrial).steps == {1: 5}
    assert [line["steps_completed"] for line in reports(trial, "checkpoint")] == [5]
    assert reports(trial, "exit")[0]["reason"] == "stop_requested"


def test_a_controller_without_required_methods_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bare(CountingTrial):
        trial_controller_class = TrialController

    enter(make_trial(tmp_path, **SPEC), monkeypatch)
    with pytest.raises(DetcloudError, match="has no train_for_step, compute_validation_metrics"):
        train(Bare)


def test_checks_raise_with_both_values() -> None:
    checks.gt_eq(1, 1)
    checks.is_type(1, int)
    checks.true(1)
    with pytest.raises(DetcloudError, match="check gt failed: 1 and 2: too few"):
        checks.check_gt(1, 2, "too few")
    with pytest.raises(DetcloudError, match="check is_none failed"):
        checks.is_none(0)
