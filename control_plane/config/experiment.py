"""The experiment configuration: every section, its era and its unit."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from control_plane.actors.lengths import Unit
from control_plane.config.described_texts import Description, ExperimentName, Labels
from control_plane.config.environment import Environment
from control_plane.config.eras import PERIODS, RULES, Era, Scope, Tree, scope_of, search_rules
from control_plane.config.hyperparameters import Hyperparameters, to_search_space
from control_plane.config.lengths import Period, Scale
from control_plane.config.log_policies import LogPolicies
from control_plane.config.resources import BindMounts, Resources
from control_plane.config.searcher import NO_SEARCHER, AnySearcher
from control_plane.config.section import REVEAL, CarriedMap, Section, refuse
from control_plane.config.storage import CheckpointStorage, Layer, SharedFsLayer, Storage
from control_plane.config.training import Optimizations, Profiling, Reproducibility
from control_plane.field_types import (
    BATCH_SIZE,
    Count,
    CountOrZero,
    Length,
    Steps,
    to_integer,
)
from control_plane.findings import Loc, value_text
from control_plane.searchers.registry import searcher_spec
from control_plane.searchers.search import SearchPlan
from detcloud.shared.launcher_names import LAUNCHERS, unknown_launcher

JSON_VERSION: Final = 1

_CLASS_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*\Z")


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The settings of an experiment that the scheduler needs. `resource_pools`: in the order of
    preference, "" for the default one.
    """

    resource_pools: tuple[str, ...]
    priority: int | None
    weight: float
    max_slots: int | None
    slots_per_trial: int


def _parse_entrypoint(value: object, info: ValidationInfo) -> str | tuple[str, ...]:
    commands = scope_of(info).rules.entrypoint_commands
    if isinstance(value, str) and value.strip():
        if not commands and not _CLASS_PATH.match(value):
            hint = "a command line needs the length era: max_length instead of max_steps"
            refuse(f"must be module:Class, not {value_text(value)}", hint)
        _check_launcher(value)
        return value
    words = value if isinstance(value, list | tuple) and commands else ()
    if not words or not words[0] or not all(isinstance(word, str) for word in words):
        kinds = "a string or a list of strings" if commands else "module:Class"
        refuse(f"must be {kinds}, and not empty, not {value_text(value)}")
    _check_launcher(tuple(words))
    return tuple(words)


def _check_launcher(entrypoint: str | tuple[str, ...]) -> None:
    name = unknown_launcher(entrypoint)
    if name is not None:
        hint = f"there are: {', '.join(LAUNCHERS)}"
        refuse(f"names the launcher detcloud.launch.{name}, which does not exist", hint)


Entrypoint = Annotated[
    str | tuple[str, ...],
    PlainValidator(_parse_entrypoint),
    PlainSerializer(lambda value: value if isinstance(value, str) else list(value)),
]


class ExperimentConfig(Section):
    """A checked, fully defaulted configuration; `check` makes them.

    `StepConfig` and `LengthConfig` add what only their era has. Sections that no era gives a
    meaning of its own are the same in both.
    """

    era: ClassVar[Era]

    name: ExperimentName | None = None
    """Shown in lists; need not be unique; at most 100,000 characters. Three generated words by
    default (length era).
    """
    description: Description | None = None
    """A description for users, of at most 100,000 characters. In the step era three generated
    words by default.
    """
    labels: Labels = ()
    """Names to filter and group by; also written as a map of name: true; at most 100, of 1,000
    characters each. In the length era those of the template are added. Changed later with
    `experiment label`.
    """
    workspace: str | None = None
    """The workspace of the experiment's project; `Uncategorized` if absent. Workspaces and projects
    are names to list by: at most 128 characters, none of them `,` or `/`. Changed later with
    `experiment move`.
    """
    project: str | None = None
    """The experiment's project; `Uncategorized` if absent."""
    entrypoint: Entrypoint | None = None
    """What trains: `module:Class` names a trial class in the model directory. In the length era
    also a command line, or a list of words that is run without a shell.
    """
    searcher: AnySearcher = NO_SEARCHER
    """How hyperparameters are chosen and how long trials train; see Searchers."""
    hyperparameters: Hyperparameters = Field(default_factory=dict)
    """The search space, a map from names; see Hyperparameters. `global_batch_size` is required in
    the step era. In the length era it converts records and epochs to batches; without it, a batch
    is one record.
    """
    data: CarriedMap = Field(default_factory=dict, repr=False)
    """Anything the model code wants to read, passed on unchanged. Values whose names sound like
    secrets (`password`, `token`, `api_key`, ...) are shown as a mask.
    """
    resources: Resources = Field(default_factory=Resources)
    """See Resources."""
    environment: Environment = Field(default_factory=Environment)
    """See Environment."""
    bind_mounts: BindMounts = ()
    """Directories of the host; see Bind mounts."""
    checkpoint_storage: Storage = Field(default_factory=CheckpointStorage)
    """Where checkpoints go and how many are kept; see Checkpoint storage."""
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    """Which validations are followed by a checkpoint: those better than every earlier one of the
    experiment, all, or none.
    """
    max_restarts: CountOrZero = 5
    """The number of failures after which a trial is started again from its latest checkpoint; one
    more ends it. Counted for each trial.
    """
    reproducibility: Reproducibility = Field(
        default_factory=lambda: Reproducibility(experiment_seed=0)
    )
    """See Reproducibility."""
    optimizations: Optimizations = Field(default_factory=Optimizations)
    """See Optimizations."""
    profiling: Profiling = Field(default_factory=Profiling)
    """See Profiling."""
    perform_initial_validation: bool = False
    """Whether a trial validates before its first batch."""
    preemption_timeout: Count | None = None
    """Seconds that a trial has for its checkpoint when it is asked to stop; then it is killed. 3600
    by default.
    """
    data_layer: Layer = Field(default_factory=SharedFsLayer)
    """See Data layer."""
    tensorboard_storage: CarriedMap | None = None
    """Accepted, but has no effect: event files are stored beside the checkpoints."""
    security: CarriedMap | None = None
    """Accepted, but has no effect."""
    internal: CarriedMap | None = None
    """Accepted, but has no effect."""
    integrations: CarriedMap | None = None
    """Accepted, but has no effect."""
    retention_policy: CarriedMap | None = None
    """Accepted, but has no effect."""
    log_policies: LogPolicies = ()
    """Accepted, but has no effect."""
    slurm: CarriedMap | None = None
    """Accepted, but has no effect."""
    pbs: CarriedMap | None = None
    """Accepted, but has no effect."""
    debug: bool = False
    """Accepted, but has no effect."""

    @field_validator("hyperparameters", mode="before")
    @classmethod
    def _read_batch_size(cls, value: Any) -> Any:
        """Read a whole float as the integer that a batch size is; other constants stay floats."""
        if not isinstance(value, Mapping) or BATCH_SIZE not in value:
            return value
        size = value[BATCH_SIZE]
        if isinstance(size, Mapping) and size.get("type") == "const":
            size = {**size, "val": to_integer(size.get("val"))} if "val" in size else size
        return {**value, BATCH_SIZE: to_integer(size)}

    @property
    def unit(self) -> Unit:
        """The unit of the searcher's lengths."""
        return self.searcher.length_unit

    @property
    def time_metric(self) -> str:
        """The metric that measures a trial's training, "" where lengths do."""
        return self.searcher.trial_time_metric

    @property
    def experiment_seed(self) -> int:
        """The seed of the search, in [0, 2^31)."""
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
            resources.slots_per_trial,
        )

    @property
    def trials(self) -> int | None:
        """How many trials the search creates, replacements of invalid ones aside; None where that
        is decided as it goes.
        """
        plan = self.search_plan()
        spec = searcher_spec(self.searcher.name)
        return spec.trial_count(self.searcher, plan.method, plan.space)

    @property
    @abstractmethod
    def scale(self) -> Scale:
        """The number of batches or records in that many units."""

    @property
    @abstractmethod
    def workload_batches(self) -> int:
        """Batches in one training workload."""

    def lengths(self) -> dict[Loc, Length]:
        """Return every length of the configuration by its place, the searcher's first."""
        lengths: dict[Loc, Length] = {
            ("searcher", name): length for name, length in self.searcher.lengths().items()
        }
        periods = {(name,): getattr(self, name) for name in PERIODS}
        return lengths | {loc: period for loc, period in periods.items() if period is not None}

    @property
    def counts_epochs(self) -> bool:
        """Whether a trial alone knows how many batches the searcher's lengths have."""
        return self.scale.lengths(self.unit).counts_epochs

    def trial_epochs(self, period: str) -> int:
        """Return the epochs of a period that a trial alone can convert to batches, 0 for others."""
        length = self.lengths().get((period,))
        is_known = length is None or not self.scale.lengths(length.unit).counts_epochs
        return 0 if length is None or is_known else length.count

    def batches(self, length: int, hparams: Mapping[str, object]) -> int:
        """Convert a length in the searcher's unit to batches, rounded down; records and epochs to
        at least 1.

        Raises: ValueError: records or epochs, and a global_batch_size that is no integer; or it
            `counts_epochs`.
        """
        return self.scale.batches(Length(self.unit, length), hparams)

    def units(self, batches: int, hparams: Mapping[str, object]) -> float:
        """Convert batches to the searcher's unit; ValueError as in `batches`."""
        return self.scale.units(self.unit, batches, hparams)

    def min_validation_batches(self, hparams: Mapping[str, object]) -> int:
        """Convert the validation period to batches, 0 = off; ValueError as in `batches`."""
        return self._period_batches("min_validation_period", hparams)

    def min_checkpoint_batches(self, hparams: Mapping[str, object]) -> int:
        """Convert the checkpoint period to batches, 0 = off; ValueError as in `batches`."""
        return self._period_batches("min_checkpoint_period", hparams)

    def search_plan(self) -> SearchPlan:
        """Plan the search, with lengths in `unit`."""
        spec = searcher_spec(self.searcher.name)
        method = spec.make_plan(self.searcher, search_rules(self.era))
        return SearchPlan(method, to_search_space(self.hyperparameters), self.experiment_seed)

    def masked_values(self) -> dict[str, Any]:
        """Return all fields as JSON values, secrets masked; they are a configuration of equal
        meaning.
        """
        return self.model_dump(mode="json")

    def trial_values(self) -> dict[str, Any]:
        """Return `masked_values`, but with the section `data` unmasked."""
        return self.masked_values() | {"data": self.data}

    def to_json(self) -> bytes:
        """Encode all fields with secrets, for the state table."""
        config = self.model_dump(mode="json", context=REVEAL)
        envelope = {"version": JSON_VERSION, "era": self.era.value, "config": config}
        return json.dumps(envelope, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> ExperimentConfig:
        """Decode what `to_json` wrote; ValueError for anything else."""
        envelope = json.loads(data)
        if not isinstance(envelope, dict) or envelope.get("version") != JSON_VERSION:
            raise ValueError(f"a stored configuration must have version {JSON_VERSION}")
        return validate_config(envelope["config"], Era(envelope["era"]))

    def _period_batches(self, name: str, hparams: Mapping[str, object]) -> int:
        period = self.lengths().get((name,))
        if not period or self.trial_epochs(name):
            return 0
        return self.scale.batches(period, hparams)


class StepConfig(ExperimentConfig):
    """A configuration that counts in steps of `batches_per_step` batches."""

    era: ClassVar[Era] = Era.STEP

    batches_per_step: Count = 100
    """Batches in a step, the unit of all lengths of this era."""
    min_validation_period: Steps | None = None
    """The number of steps after which a trial validates, if the search has not asked for it before.
    """
    min_checkpoint_period: Steps | None = None
    """The number of steps after which a trial makes a checkpoint, if it has made none since."""

    @property
    def scale(self) -> Scale:
        """The number of batches or records in that many units."""
        return Scale(batches_per_step=self.batches_per_step)

    @property
    def workload_batches(self) -> int:
        """Batches in one training workload."""
        return self.batches_per_step


class LengthConfig(ExperimentConfig):
    """A configuration that counts in batches, records or epochs."""

    era: ClassVar[Era] = Era.LENGTH

    records_per_epoch: CountOrZero = 0
    """Records in an epoch. Without it, lengths in epochs are those of the trial's own data: only it
    knows how many batches they have.
    """
    scheduling_unit: Count = 100
    """Batches in one training workload: metrics are averaged over it, and a pause waits for its
    end.
    """
    min_validation_period: Period = Length("batches", 0)
    """The longest training without a validation; 0 turns this off."""
    min_checkpoint_period: Period = Length("batches", 0)
    """The longest training without a checkpoint; 0 turns this off."""

    @property
    def scale(self) -> Scale:
        """The number of batches or records in that many units."""
        return Scale(records_per_epoch=self.records_per_epoch)

    @property
    def workload_batches(self) -> int:
        """Batches in one training workload."""
        return self.scheduling_unit


def validate_config(tree: Tree, era: Era) -> ExperimentConfig:
    """Validate the sections in `tree`, each alone.

    Raises:
        pydantic.ValidationError: with every section that is wrong.
    """
    model = StepConfig if era is Era.STEP else LengthConfig
    return model.model_validate(tree, context=scope_of_tree(tree, era))


def scope_of_tree(tree: Tree, era: Era) -> Scope:
    """Return what the check of a single value may know of a configuration."""
    searcher = tree.get("searcher")
    name = searcher.get("name") if isinstance(searcher, Mapping) else None
    return Scope(RULES[era], name if isinstance(name, str) else "")
