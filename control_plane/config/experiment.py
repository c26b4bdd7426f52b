"""The experiment configuration: all sections, the era and the units of lengths."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from pydantic import (
    Field,
    field_validator,
)

from control_plane.actors.lengths import Unit
from control_plane.config.described_texts import Description, ExperimentName, Labels
from control_plane.config.durations import PositiveDuration
from control_plane.config.entrypoint import Entrypoint
from control_plane.config.environment import Environment
from control_plane.config.eras import PERIODS, RULES, Era, Scope, Tree, search_rules
from control_plane.config.hang_detection import HangDetection
from control_plane.config.hyperparameters import Hyperparameters, to_search_space
from control_plane.config.lengths import Period, Scale
from control_plane.config.log_policies import LogPolicies
from control_plane.config.low_use import LowUse
from control_plane.config.resources import BindMounts, Resources
from control_plane.config.schedule import Schedule
from control_plane.config.searcher import NO_SEARCHER, AnySearcher
from control_plane.config.section import REVEAL, CarriedMap, Section
from control_plane.config.slot_shares import sharers_of, whole_slots
from control_plane.config.storage import CheckpointStorage, Layer, SharedFsLayer, Storage
from control_plane.config.training import Debugger, Optimizations, Profiling, Reproducibility
from control_plane.field_types import (
    BATCH_SIZE,
    Count,
    CountOrZero,
    Length,
    Steps,
    to_integer,
)
from control_plane.findings import Loc
from control_plane.searchers.registry import searcher_spec
from control_plane.searchers.search import SearchPlan
from detcloud.shared.masking import mask_all_urls

JSON_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The settings of an experiment that the scheduler needs."""

    resource_pools: tuple[str, ...]
    """The names of the pools in the order of preference. "" stands for the default pool."""
    priority: int | None
    """The priority. None: the default of the pool."""
    weight: float
    max_slots: int | None
    """The most slots of all trials together. None: no limit."""
    slots_per_trial: int
    """The slots of a trial. 1 for a trial that shares a slot."""
    slot_sharers: int
    """The most trials that share a slot. 1: each trial has its own slots."""


class ExperimentConfig(Section):
    """A checked configuration with all defaults, which check.py makes.

    The subclasses `StepConfig` and `LengthConfig` add the fields of their era.
    """

    era: ClassVar[Era]

    name: ExperimentName | None = None
    """The name of the experiment in lists, of at most 100,000 characters. Names need not be unique.
    In the length era three generated words by default.
    """
    description: Description | None = None
    """A description for users, of at most 100,000 characters. In the step era three generated
    words by default.
    """
    labels: Labels = ()
    """Names by which experiments are filtered and grouped: a list of names, or a map of name: true.
    At most 100 labels of at most 1,000 characters. In the length era, the labels of the template
    are added. Changed later with `experiment label`.
    """
    workspace: str | None = None
    """The workspace of the experiment's project; `Uncategorized` if absent. Workspaces and projects
    group experiments in lists. Their names have at most 128 characters, without `,` and `/`.
    Changed later with `experiment move`.
    """
    project: str | None = None
    """The experiment's project; `Uncategorized` if absent."""
    entrypoint: Entrypoint | None = None
    """The training code: `module:Class` is a trial class in the model directory. In the length era
    also a command line, or a list of words that is run without a shell.
    """
    searcher: AnySearcher = NO_SEARCHER
    """The search method, which chooses hyperparameters and lengths of training; see Searchers."""
    hyperparameters: Hyperparameters = Field(default_factory=dict)
    """The search space, a map from names; see Hyperparameters. `global_batch_size` is required in
    the step era. In the length era it converts records and epochs to batches; without it, a batch
    is one record.
    """
    data: CarriedMap = Field(default_factory=dict, repr=False)
    """Any values for the model code, unchanged. Values with names that sound like secrets
    (`password`, `token`, `api_key`, ...) are shown as a mask.
    """
    resources: Resources = Field(default_factory=Resources)
    """See Resources."""
    environment: Environment = Field(default_factory=Environment)
    """See Environment."""
    bind_mounts: BindMounts = ()
    """Directories of the host; see Bind mounts."""
    checkpoint_storage: Storage = Field(default_factory=CheckpointStorage)
    """The store of checkpoints, and the number of checkpoints to keep; see Checkpoint storage."""
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    """The validations after which a trial saves a checkpoint. `best`: validations with a better
    metric than all earlier validations of the experiment. `all`: every validation. `none`: no
    validation.
    """
    max_restarts: CountOrZero = 5
    """The number of times that a trial is restarted from its latest checkpoint after a failure. The
    next failure ends the trial. Each trial has its own count.
    """
    restart_window: PositiveDuration | None = None
    """The time for which a failure counts against `max_restarts`, for example `24h`. The trial then
    ends after more than `max_restarts` failures within this time. If absent, failures count for
    ever. Needs a `max_restarts` of at most 100.
    """
    reproducibility: Reproducibility = Field(
        default_factory=lambda: Reproducibility(experiment_seed=0)
    )
    """See Reproducibility."""
    optimizations: Optimizations = Field(default_factory=Optimizations)
    """See Optimizations."""
    profiling: Profiling = Field(default_factory=Profiling)
    """See Profiling."""
    debugger: Debugger = Field(default_factory=Debugger)
    """See Debugger."""
    perform_initial_validation: bool = False
    """Whether a trial validates before the first batch."""
    preemption_timeout: Count | None = None
    """The time in seconds that a trial has to save a checkpoint after a request to stop. Then the
    trial is killed. 3600 by default.
    """
    max_duration: PositiveDuration | None = None
    """The time after which the experiment is canceled, from the first assignment of slots: trials
    save checkpoints first. Waits and pauses count. If absent, an experiment has no limit.
    """
    max_trial_duration: PositiveDuration | None = None
    """The time with slots after which a trial is canceled, over all runs of the trial. The trial
    saves a checkpoint first. Waits and pauses do not count. If absent, a trial has no limit.
    """
    idle_timeout: PositiveDuration | None = None
    """The time after which an idle trial is canceled: no report, no line of output, no work of its
    GPUs, and no byte of a tunnel. If absent, an idle trial continues.
    """
    hang_detection: HangDetection = Field(default_factory=HangDetection)
    """See Hang detection."""
    low_use: LowUse = Field(default_factory=LowUse)
    """See Low use."""
    exit_timeout: Count | None = None
    """The time in seconds that threads of a trial's process may still run after the training code
    has ended. Then the process is ended. 60 by default.
    """
    schedule: Schedule | None = None
    """Submits the configuration again at fixed times, instead of once; see Schedule. Experiments of
    a schedule lack this section.
    """
    data_layer: Layer = Field(default_factory=SharedFsLayer)
    """See Data layer."""
    tensorboard_storage: CarriedMap | None = None
    """Accepted, but has no effect: event files are stored in the checkpoint storage."""
    security: CarriedMap | None = None
    """Accepted, but has no effect."""
    internal: CarriedMap | None = None
    """Accepted, but has no effect."""
    integrations: CarriedMap | None = None
    """`webhooks` chooses the [webhooks](webhooks.md#webhooks-of-an-experiment) that announce the
    experiment: a map with `webhook_id`, `webhook_name` and `exclude`. `github` states the
    [commit](webhooks.md#statuses-of-commits) of the code: a map with `commit` and `repository`.
    Other integrations are accepted, but have no effect.
    """
    retention_policy: CarriedMap | None = None
    """The [retention](manage.md#delete-old-logs-and-metrics) of logs and metrics: a map with
    `log_retention_days` and `metrics_retention_days`, counted from the end of the experiment. -1
    keeps the data. The cluster's `retention_policy` has defaults.
    """
    log_policies: LogPolicies = ()
    """Actions for lines of the log that match a pattern; see
    [Log policies](log-policies.md). Policies of the cluster are added, unless they have the name
    of a policy here.
    """
    slurm: CarriedMap | None = None
    """Accepted, but has no effect."""
    pbs: CarriedMap | None = None
    """Accepted, but has no effect."""
    debug: bool = False
    """Accepted, but has no effect."""

    @field_validator("hyperparameters", mode="before")
    @classmethod
    def _read_batch_size(cls, value: Any) -> Any:
        """Return the section with a whole float as `global_batch_size`, e.g. 64.0, as an integer.

        Only a constant is converted. Floats of other hyperparameters stay floats.
        """
        if not isinstance(value, Mapping) or BATCH_SIZE not in value:
            return value
        size = value[BATCH_SIZE]
        if isinstance(size, Mapping) and size.get("type") == "const":
            size = {**size, "val": to_integer(size.get("val"))} if "val" in size else size
        return {**value, BATCH_SIZE: to_integer(size)}

    @property
    def unit(self) -> Unit:
        """The unit of the searcher's lengths. "batches" if the searcher has no lengths.

        A searcher with a time metric has no lengths. A custom search has the configured unit.
        """
        return self.searcher.length_unit

    @property
    def time_metric(self) -> str:
        """The name of the searcher's time metric. "" if lengths measure training."""
        return self.searcher.trial_time_metric

    @property
    def experiment_seed(self) -> int:
        """The seed of the search, from 0 to 2**31 - 1."""
        return self.reproducibility.experiment_seed

    @property
    def job(self) -> JobSettings:
        """The settings that the scheduler needs."""
        resources = self.resources
        return JobSettings(
            resources.pools,
            resources.priority,
            resources.weight,
            resources.max_slots,
            whole_slots(resources.slots_per_trial),
            sharers_of(resources.slots_per_trial),
        )

    @property
    def trials(self) -> int | None:
        """The number of trials that the search creates, without replacements of invalid trials.

        None if the number is not known in advance.
        """
        plan = self.search_plan()
        spec = searcher_spec(self.searcher.name)
        return spec.trial_count(self.searcher, plan.method, plan.space)

    @property
    @abstractmethod
    def scale(self) -> Scale:
        """The batches in a step and the records in an epoch, which convert lengths to batches."""

    @property
    @abstractmethod
    def workload_batches(self) -> int:
        """The number of batches in a training workload, over which metrics are averaged."""

    def lengths(self) -> dict[Loc, Length]:
        """Return all lengths of the configuration by path.

        The lengths of the searcher come first, then the validation and checkpoint periods. Absent
        lengths are left out. In the length era, a period without a value is a length of 0.
        """
        lengths: dict[Loc, Length] = {
            ("searcher", name): length for name, length in self.searcher.lengths().items()
        }
        periods = {(name,): getattr(self, name) for name in PERIODS}
        return lengths | {loc: period for loc, period in periods.items() if period is not None}

    @property
    def counts_epochs(self) -> bool:
        """Whether the searcher's lengths are epochs and `records_per_epoch` is not set.

        Only the trial can convert such lengths to batches.
        """
        return self.scale.lengths(self.unit).counts_epochs

    def trial_epochs(self, period: str) -> int:
        """Return the number of epochs of a period that only the trial can convert to batches.

        Return 0 for a period that is absent or can be converted here.

        Args:
            period: `min_validation_period` or `min_checkpoint_period`.
        """
        length = self.lengths().get((period,))
        is_known = length is None or not self.scale.lengths(length.unit).counts_epochs
        return 0 if length is None or is_known else length.count

    def batches(self, length: int, hparams: Mapping[str, object]) -> int:
        """Return the number of batches of a length, rounded down.

        A length of 0 has 0 batches. Other lengths in records or epochs have at least 1.

        Args:
            length: the length in `unit`.
            hparams: the trial's hyperparameters. Without `global_batch_size`, a batch is a record.

        Raises:
            ValueError: the length is not 0, the unit is records or epochs, and `global_batch_size`
                is set, but not to an integer of at least 1. Also raised if `counts_epochs` is True
                and the length is not 0.
        """
        return self.scale.batches(Length(self.unit, length), hparams)

    def units(self, batches: int, hparams: Mapping[str, object]) -> float:
        """Return a number of batches converted to `unit`, not rounded.

        Args:
            hparams: as in `batches`.

        Raises:
            ValueError: as in `batches`, also for 0 batches.
        """
        return self.scale.units(self.unit, batches, hparams)

    def min_validation_batches(self, hparams: Mapping[str, object]) -> int:
        """Return the validation period in batches, for a trial with the hyperparameters `hparams`.

        The number is rounded down, but at least 1. Return 0 if the period is off or absent, or only
        the trial can convert the period. Without `global_batch_size`, a batch is a record.

        Raises:
            ValueError: the period is in records or epochs, and `global_batch_size` is set, but not
                to an integer of at least 1.
        """
        return self._period_batches("min_validation_period", hparams)

    def min_checkpoint_batches(self, hparams: Mapping[str, object]) -> int:
        """Return the checkpoint period in batches, for a trial with the hyperparameters `hparams`.

        The rounding, the result 0 and the error are those of `min_validation_batches`.
        """
        return self._period_batches("min_checkpoint_period", hparams)

    def search_plan(self) -> SearchPlan:
        """Return the plan of the search, with lengths in `unit`."""
        spec = searcher_spec(self.searcher.name)
        method = spec.make_plan(self.searcher, search_rules(self.era))
        return SearchPlan(method, to_search_space(self.hyperparameters), self.experiment_seed)

    def masked_values(self) -> dict[str, Any]:
        """Return all fields, defaults included, as JSON values with secrets masked.

        Secrets in the URLs of any text are masked, too. The values are a valid configuration of the
        same meaning, except for the secrets.
        """
        values: dict[str, Any] = mask_all_urls(self.model_dump(mode="json"))
        return values

    def trial_values(self) -> dict[str, Any]:
        """Return all fields as JSON values for the code of a trial.

        Secret fields and environment variables are masked. Secrets in the section `data`, and in
        URLs in plain texts such as the entrypoint, are not.
        """
        return self.model_dump(mode="json") | {"data": self.data}

    def to_json(self) -> bytes:
        """Return all fields as JSON for the state table, with secrets unmasked.

        The JSON also contains the era and the version of the format.
        """
        config = self.model_dump(mode="json", context=REVEAL)
        envelope = {"version": JSON_VERSION, "era": self.era.value, "config": config}
        return json.dumps(envelope, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> ExperimentConfig:
        """Return the configuration that `to_json` has encoded.

        Raises:
            ValueError: the data is not JSON of this version, or not a valid configuration.
            KeyError: the field `config` or `era` is missing.
        """
        envelope = json.loads(data)
        if not isinstance(envelope, dict) or envelope.get("version") != JSON_VERSION:
            raise ValueError(f"a stored configuration must have version {JSON_VERSION}")
        if not isinstance(envelope["config"], dict):
            raise ValueError("a stored configuration must be a map of fields")
        return validate_config(envelope["config"], Era(envelope["era"]))

    def _period_batches(self, name: str, hparams: Mapping[str, object]) -> int:
        period = self.lengths().get((name,))
        if not period or self.trial_epochs(name):
            return 0
        return self.scale.batches(period, hparams)


class StepConfig(ExperimentConfig):
    """A configuration with lengths in steps of `batches_per_step` batches."""

    era: ClassVar[Era] = Era.STEP

    batches_per_step: Count = 100
    """The number of batches in a step. A step is the unit of all lengths of this era."""
    min_validation_period: Steps | None = None
    """The number of steps after which a trial validates, unless the search requests a validation
    earlier.
    """
    min_checkpoint_period: Steps | None = None
    """The number of steps after the latest checkpoint at which a trial saves the next."""

    @property
    def scale(self) -> Scale:
        """The scale with `batches_per_step`, which converts steps to batches."""
        return Scale(batches_per_step=self.batches_per_step)

    @property
    def workload_batches(self) -> int:
        """The number of batches in a training workload, which is a step."""
        return self.batches_per_step


class LengthConfig(ExperimentConfig):
    """A configuration with lengths in batches, records or epochs."""

    era: ClassVar[Era] = Era.LENGTH

    records_per_epoch: CountOrZero = 0
    """The number of records in an epoch. If absent or 0, an epoch is a pass over the trial's own
    data, and only the trial knows the number of batches.
    """
    scheduling_unit: Count = 100
    """The number of batches in a training workload. Metrics are averaged over a workload, and a
    pause waits for the end of the workload.
    """
    min_validation_period: Period = Length("batches", 0)
    """The longest training without a validation; 0 turns this off."""
    min_checkpoint_period: Period = Length("batches", 0)
    """The longest training without a checkpoint; 0 turns this off."""

    @property
    def scale(self) -> Scale:
        """The scale with `records_per_epoch` as configured, which converts epochs to batches.

        `records_per_epoch` is 0 if the configuration does not set a number.
        """
        return Scale(records_per_epoch=self.records_per_epoch)

    @property
    def workload_batches(self) -> int:
        """The number of batches in a training workload, which is `scheduling_unit`."""
        return self.scheduling_unit


def validate_config(tree: Tree, era: Era) -> ExperimentConfig:
    """Return the configuration of the fields in `tree`. Absent sections have their defaults.

    Rules between sections (consistency.py) are not checked.

    Raises:
        pydantic.ValidationError: sections are invalid. The error contains the faults of all.
    """
    model = StepConfig if era is Era.STEP else LengthConfig
    return model.model_validate(tree, context=scope_of_tree(tree, era))


def scope_of_tree(tree: Tree, era: Era) -> Scope:
    """Return the scope for the check of the fields in `tree`: the era's rules and the searcher.

    The searcher's name is "" if it is absent or not a text.
    """
    searcher = tree.get("searcher")
    name = searcher.get("name") if isinstance(searcher, Mapping) else None
    return Scope(RULES[era], name if isinstance(name, str) else "")
