"""The content of an allocation's `in/spec.json`, built from the experiment and the trial."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.records import CheckpointRef
from control_plane.actors.spans import traceparent_of_run
from control_plane.actors.trial.state import TrialState
from control_plane.actors.trial.time_limit import run_end_ms
from control_plane.agents.desired_state import SpecBuilder
from control_plane.checkpoint_stores.trial_storage import storage_fields
from control_plane.config.eras import Era
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.images import images_to_run
from control_plane.config.log_policies import effective_policies
from control_plane.config.section import REVEAL
from control_plane.config.storage import CheckpointStorage


def spec_builder(cluster_id: str, checkpoints: CheckpointStorage) -> SpecBuilder:
    """Return a function that builds the specs of trials, secrets included.

    The function raises ValueError or KeyError if the stored configuration is not valid for this
    release, or names an unknown type of checkpoint store.

    Args:
        cluster_id: the id of the cluster.
        checkpoints: the checkpoint store of experiments whose configuration names no store.
    """

    def build_spec(
        experiment: ExperimentState, definition: Definition, trial: TrialState
    ) -> dict[str, Any]:
        config = parse_stored_config(definition)
        own_checkpoint = trial.checkpoint
        start = own_checkpoint or trial.inherited_checkpoint or definition.warm_start
        workloads = _workload_fields(config, definition, trial)
        return {
            # An older harness would read epochs as batches. Version 2 makes that harness fail.
            "version": 2 if _counts_epochs(trial, workloads) else 1,
            "cluster_id": cluster_id,
            "experiment_id": experiment.experiment_id,
            "trial_id": trial.trial_id,
            "trial_seed": trial.seed,
            "hparams": dict(trial.hparams),
            "config": config.trial_values(),
            # Secrets in `config` are masked, because user code may print the configuration.
            "environment_variables": _environment_variables(config, trial),
            "registry_auth": _registry_auth(config),
            "packages": config.environment.declared_packages(),
            "owner": experiment.owner,
            "image": images_to_run(config.environment.image),
            "era": "steps" if config.era is Era.STEP else "length",
            "entrypoint": _entrypoint(config),
            "latest_checkpoint": _checkpoint_reference(start) if start else None,
            "storage": storage_fields(config.checkpoint_storage, checkpoints),
            "data_layer": _data_layer(config),
            "damaged_checkpoint": _damaged_checkpoint(trial),
            "steps_completed": own_checkpoint.steps_completed if own_checkpoint else 0,
            "validated_steps": trial.metric_steps,
            "discarded_from": trial.discarded_from,
            "threads": max(1, trial.settings.slots),
            **workloads,
            "perform_initial_validation": config.perform_initial_validation,
            "metric": experiment.metric,
            "smaller_is_better": experiment.smaller_is_better,
            "test_mode": definition.test_mode,
            "log_policies": effective_policies(config.log_policies),
            # The first step of a traced run ends a span.
            "replaces_run": trial.replacement is not None or _exports_spans(trial),
            **({"runs_once": True} if trial.settings.runs_once else {}),
            **_share_fields(trial),
            **_limit_fields(trial, experiment.ends_ms),
            **_hang_fields(config, trial),
            **({} if trial.settings.runs_once else config.low_use.spec_fields()),
            **_snapshot_fields(definition, trial),
        }

    return build_spec


def parse_stored_config(definition: Definition) -> ExperimentConfig:
    """Parse the experiment configuration in a definition. Recent results are cached and shared.

    Raises ValueError or KeyError if the configuration is not valid for this release.
    """
    return _parse_config(definition.config)


@lru_cache(maxsize=32)
def _parse_config(text: str) -> ExperimentConfig:
    """Parse a stored configuration, with a cache. Raises ValueError or KeyError."""
    return ExperimentConfig.from_json(text.encode())


def _environment_variables(config: ExperimentConfig, trial: TrialState) -> dict[str, list[str]]:
    """Return the variables by kind of device, secrets included.

    The variables of a traced trial begin with TRACEPARENT, so that the configuration may replace
    the variable.
    """
    variables, trace = config.environment.environment_variables.reveal(), trial.settings.trace
    if trace is None:
        return variables
    parent = traceparent_of_run(trace.traceparent, trial.trial_id, trial.epoch)
    return {device: [f"TRACEPARENT={parent}", *others] for device, others in variables.items()}


def _exports_spans(trial: TrialState) -> bool:
    """Return whether the cluster exports the spans of the trial's runs."""
    return trial.settings.trace is not None and trial.settings.trace.exports_spans


def _entrypoint(config: ExperimentConfig) -> str | list[str]:
    """Return the entrypoint as a text or a list of arguments; "" without an entrypoint."""
    entrypoint = config.entrypoint or ""
    return entrypoint if isinstance(entrypoint, str) else list(entrypoint)


def _registry_auth(config: ExperimentConfig) -> dict[str, Any] | None:
    """Return the configuration's login at the image registry with the password, or None."""
    login = config.environment.registry_auth
    return login.model_dump(mode="json", context=REVEAL) if login else None


def registry_login(config: ExperimentConfig) -> dict[str, str] | None:
    """Return the fields of the configuration's login that are set, with the secrets.

    Return None without a login. `server` also has the value of its other name `serveraddress`.
    """
    login = _registry_auth(config)
    if login is None:
        return None
    fields = {name: str(value) for name, value in login.items() if value}
    address = fields.pop("serveraddress", "")
    return {**({"server": address} if address else {}), **fields}


def _data_layer(config: ExperimentConfig) -> dict[str, Any]:
    """Return the settings of the data layer, secrets included. Settings that are None are left
    out.
    """
    return config.data_layer.model_dump(mode="json", context=REVEAL, exclude_none=True)


def _checkpoint_reference(checkpoint: CheckpointRef) -> dict[str, Any]:
    """Return the fields of a spec that refer to a checkpoint: id, trial, steps, path and digest."""
    return {
        "uuid": checkpoint.uuid,
        "trial_id": checkpoint.trial_id,
        "steps_completed": checkpoint.steps_completed,
        "path": checkpoint.path,
        "manifest_sha256": checkpoint.manifest_sha256,
    }


def _damaged_checkpoint(trial: TrialState) -> dict[str, Any] | None:
    """Describe the last damage, if the trial starts from the replacement of the damaged checkpoint.

    The description has the checkpoint's UUID and steps, and the cause. The replacement is an older
    checkpoint or the beginning. Return None if the trial has recorded no damage or has saved a
    newer checkpoint since.
    """
    own = trial.checkpoint.uuid if trial.checkpoint else ""
    damage = trial.recent_damages[-1] if trial.recent_damages else None
    if damage is None or damage.fallback_uuid != own:
        return None
    return {"uuid": damage.uuid, "steps_completed": damage.steps, "cause": damage.cause}


def _workload_fields(
    config: ExperimentConfig, definition: Definition, trial: TrialState
) -> dict[str, Any]:
    """Return the fields of the spec that describe the trial's workloads.

    The fields are the length of a workload, the minimum periods of validations and checkpoints, and
    the checkpoint policy. Periods are in batches, 0 without a period. A period in epochs that only
    the trial can convert gets a field of its own. In test mode all periods are minimal. If the
    hyperparameters have no usable batch size, periods are 0, and the trial reports the error.
    """
    if definition.test_mode:
        return {
            "scheduling_unit": 1,
            "min_validation_batches": 0,
            "min_checkpoint_batches": 0,
            "checkpoint_policy": "all",
        }
    try:
        validation = config.min_validation_batches(trial.hparams)
        checkpoint = config.min_checkpoint_batches(trial.hparams)
    except ValueError:
        # The hyperparameters have no usable batch size. The trial reports the error at its start.
        validation = checkpoint = 0
    epochs = {
        "min_validation_epochs": config.trial_epochs("min_validation_period"),
        "min_checkpoint_epochs": config.trial_epochs("min_checkpoint_period"),
    }
    return {
        "scheduling_unit": config.workload_batches,
        "min_validation_batches": validation,
        "min_checkpoint_batches": checkpoint,
        **{name: count for name, count in epochs.items() if count},
        "checkpoint_policy": config.checkpoint_policy,
    }


def _share_fields(trial: TrialState) -> dict[str, Any]:
    """Return the field `slot_sharers` of a trial that shares a slot, else no field."""
    sharers = trial.settings.slot_sharers
    return {"slot_sharers": sharers} if sharers > 1 else {}


def _limit_fields(trial: TrialState, experiment_ends_ms: int | None) -> dict[str, Any]:
    """Return the field `run_limits` if the run or the experiment has limits, else no field.

    `ends_ms` is the end of the run or of the experiment in epoch ms. `idle_timeout_ms` is the time
    after which the agent ends an idle command or shell. Trials of experiments have
    `trial_idle_timeout_ms` instead, because older agents would not count their output as use.
    `experiment_ends_ms` is None without a limit, and until
    the experiment has learned of its first run. A trial with a `max_trial_duration` may end before
    the experiment.
    """
    settings, allocation = trial.settings, trial.allocation
    limits = {}
    duration_ms = settings.max_duration_ms or settings.experiment_duration_ms
    if experiment_ends_ms is not None:
        limits["ends_ms"] = experiment_ends_ms
    elif duration_ms is not None and allocation is not None and allocation.placed_ms:
        limits["ends_ms"] = allocation.placed_ms + duration_ms
    trial_ends_ms = run_end_ms(trial)
    if trial_ends_ms is not None:
        limits["ends_ms"] = min(trial_ends_ms, limits.get("ends_ms", trial_ends_ms))
    if settings.idle_timeout_ms is not None:
        name = "idle_timeout_ms" if settings.runs_once else "trial_idle_timeout_ms"
        limits[name] = settings.idle_timeout_ms
    return {"run_limits": limits} if limits else {}


def _hang_fields(config: ExperimentConfig, trial: TrialState) -> dict[str, Any]:
    """Return the field `hang_timeout_ms` of a trial of an experiment, else no field."""
    return {} if trial.settings.runs_once else config.hang_detection.spec_fields()


def _snapshot_fields(definition: Definition, trial: TrialState) -> dict[str, Any]:
    """Return the field `snapshots` of a notebook or shell that saves or restores a folder.

    The field is {} if the run only restores files. Return no field for other runs.
    """
    settings = trial.settings.snapshots
    if settings is not None:
        return {"snapshots": {"period_ms": settings.period_ms, "bytes_max": settings.bytes_max}}
    return {} if definition.restored_from is None else {"snapshots": {}}


def _counts_epochs(trial: TrialState, workloads: Mapping[str, Any]) -> bool:
    """Return whether the spec has a length or period in epochs."""
    return trial.counts_epochs or any(name.endswith("_epochs") for name in workloads)
