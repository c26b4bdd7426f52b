"""The contents of an allocation's `in/spec.json`, built from its experiment and its trial."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.records import CheckpointRef
from control_plane.actors.trial.state import TrialState
from control_plane.agents.desired_state import SpecBuilder
from control_plane.checkpoint_stores.trial_storage import storage_fields
from control_plane.config.eras import Era
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.images import images_to_run
from control_plane.config.section import REVEAL
from control_plane.config.storage import CheckpointStorage


def spec_builder(cluster_id: str, checkpoints: CheckpointStorage) -> SpecBuilder:
    """Build the builder of specs. `checkpoints` is the store of checkpoints unless the experiment's
    configuration names one.
    """

    def build_spec(
        experiment: ExperimentState, definition: Definition, trial: TrialState
    ) -> dict[str, Any]:
        config = parse_stored_config(definition)
        own = trial.checkpoint
        checkpoint = own or trial.inherited or definition.warm_start
        workloads = _workload_fields(config, definition, trial)
        return {
            # An older harness, which would take epochs for batches, refuses the newer version.
            "version": 2 if _counts_epochs(trial, workloads) else 1,
            "cluster_id": cluster_id,
            "experiment_id": experiment.experiment_id,
            "trial_id": trial.trial_id,
            "trial_seed": trial.seed,
            "hparams": dict(trial.hparams),
            "config": config.trial_values(),
            # Separate and unmasked, since user code may print its configuration.
            "environment_variables": config.environment.environment_variables.reveal(),
            "registry_auth": _registry_auth(config),
            "image": images_to_run(config.environment.image),
            "era": "steps" if config.era is Era.STEP else "length",
            "entrypoint": _entrypoint(config),
            "latest_checkpoint": _checkpoint_reference(checkpoint) if checkpoint else None,
            "storage": storage_fields(config.checkpoint_storage, checkpoints),
            "data_layer": _data_layer(config),
            "damaged_checkpoint": _damaged_checkpoint(trial),
            "steps_completed": own.steps_completed if own else 0,
            "validated_steps": trial.metric_steps,
            "threads": max(1, trial.settings.slots),
            **workloads,
            "perform_initial_validation": config.perform_initial_validation,
            "metric": experiment.metric,
            "smaller_is_better": experiment.smaller_is_better,
            "test_mode": definition.test_mode,
        }

    return build_spec


def parse_stored_config(definition: Definition) -> ExperimentConfig:
    """Parse the configuration that an experiment was created with."""
    return _parse_config(definition.config)


@lru_cache(maxsize=32)
def _parse_config(text: str) -> ExperimentConfig:
    return ExperimentConfig.from_json(text.encode())


def _entrypoint(config: ExperimentConfig) -> str | list[str]:
    entrypoint = config.entrypoint or ""
    return entrypoint if isinstance(entrypoint, str) else list(entrypoint)


def _registry_auth(config: ExperimentConfig) -> dict[str, Any] | None:
    login = config.environment.registry_auth
    return login.model_dump(mode="json", context=REVEAL) if login else None


def _data_layer(config: ExperimentConfig) -> dict[str, Any]:
    return config.data_layer.model_dump(mode="json", context=REVEAL, exclude_none=True)


def _checkpoint_reference(checkpoint: CheckpointRef) -> dict[str, Any]:
    return {
        "uuid": checkpoint.uuid,
        "trial_id": checkpoint.trial_id,
        "steps_completed": checkpoint.steps_completed,
        "path": checkpoint.path,
        "manifest_sha256": checkpoint.manifest_sha256,
    }


def _damaged_checkpoint(trial: TrialState) -> dict[str, Any] | None:
    """The damaged checkpoint that the trial cannot start from, so that it starts from an older one
    or from the beginning.
    """
    own = trial.checkpoint.uuid if trial.checkpoint else ""
    damage = trial.recent_damages[-1] if trial.recent_damages else None
    if damage is None or damage.instead != own:
        return None
    return {"uuid": damage.uuid, "steps_completed": damage.steps, "cause": damage.cause}


def _workload_fields(
    config: ExperimentConfig, definition: Definition, trial: TrialState
) -> dict[str, Any]:
    """The spec's fields about workloads: their length, the periods of validations and checkpoints
    in batches, or in epochs that the trial alone can convert, and the checkpoint policy.
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
        # Hyperparameters without a usable batch size: the trial says so itself when it starts.
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


def _counts_epochs(trial: TrialState, workloads: Mapping[str, Any]) -> bool:
    return trial.counts_epochs or any(name.endswith("_epochs") for name in workloads)
