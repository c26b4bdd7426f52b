"""Sample messages that create actors. Keywords override their fields."""

from control_plane.actors import era_rules as lifecycles
from control_plane.actors.era_rules import LifecycleRules
from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.messages.trial import CheckpointReported, TrialCreated
from control_plane.actors.records import CheckpointRef, Status, TrialSettings
from control_plane.searchers.era_rules import LENGTH_ERA, SearchRules
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.methods.single import SinglePlan
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Double, Group

LENGTH = 100
SUBMITTED_MS = 500


def trial_settings(
    *,
    max_restarts: int = 5,
    slots: int = 2,
    smaller_is_better: bool = True,
    lengths: Lengths | None = None,
) -> TrialSettings:
    return TrialSettings(
        pool="default",
        slots=slots,
        max_restarts=max_restarts,
        smaller_is_better=smaller_is_better,
        lengths=lengths or Lengths("batches"),
        submitted_ms=SUBMITTED_MS,
        discards_lost_metrics=True,
    )


def random_plan(trials: int, *, concurrent: int = 0, rules: SearchRules = LENGTH_ERA) -> SearchPlan:
    return SearchPlan(
        RandomPlan(LENGTH, trials, concurrent, rules), Group({"lr": Double(0.1, 1.0)}), seed=7
    )


def single_plan() -> SearchPlan:
    return SearchPlan(SinglePlan(LENGTH, LENGTH_ERA), Group({"lr": Double(0.1, 1.0)}), seed=7)


def experiment_submitted(
    plan: SearchPlan | None = None,
    *,
    experiment_id: int = 1,
    paused: bool = False,
    smaller_is_better: bool = True,
    rules: LifecycleRules = lifecycles.LENGTH_ERA,
    searcher: str = "random",
    warm_start: CheckpointRef | None = None,
) -> ExperimentSubmitted:
    return ExperimentSubmitted(
        experiment_id=experiment_id,
        owner="ada",
        name="digits",
        config="{}",
        code_sha256="0" * 64,
        plan=plan or single_plan(),
        settings=trial_settings(smaller_is_better=smaller_is_better),
        metric="loss",
        searcher=searcher,
        paused=paused,
        rules=rules,
        warm_start=warm_start,
    )


def trial_created(
    *,
    length: int | None = LENGTH,
    closed: bool = True,
    status: Status = Status.ACTIVE,
    hparams: dict[str, object] | None = None,
    of: TrialSettings | None = None,
) -> TrialCreated:
    return TrialCreated(
        trial_id=4,
        experiment_id=1,
        number=3,
        request_id="11111111-1111-4111-8111-111111111111",
        hparams=hparams or {"lr": 0.5},
        seed=11,
        length=length,
        closed=closed,
        experiment_status=status,
        settings=of or trial_settings(),
    )


def checkpoint_reported(steps: int, *, epoch: int = 1, number: int = 0) -> CheckpointReported:
    uuid = f"{number:08x}-0000-4000-8000-{steps:012x}"
    reference = CheckpointRef(uuid, 4, steps, f"1/4/{epoch}/{uuid}", "0" * 64)
    return CheckpointReported(epoch, reference, size_bytes=8, files=1)
