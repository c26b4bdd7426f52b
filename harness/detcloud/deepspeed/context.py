"""The context of a DeepSpeedTrial: the engines, and this process's share of data and model."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config_utils import dict_raise_error_on_duplicate_keys

from detcloud import core, pytorch
from detcloud.pytorch.generators import seed_all
from detcloud.shared.errors import DetcloudError
from detcloud.shared.experiment_config import ExperimentConfig
from detcloud.shared.training_settings import TrainingLoop


@dataclass
class ModelParallelUnit:
    """A process's share of the data, and the process's tasks."""

    data_parallel_rank: int
    """The number of the process's share of the data."""
    data_parallel_world_size: int
    """The number of shares into which the data is divided."""
    should_report_metrics: bool
    """Whether the metrics of this process count."""
    should_build_data_loader: bool
    """Whether this process needs data."""


def make_data_parallel_mpu(dist_context: core.DistributedContext) -> ModelParallelUnit:
    """Return the unit of a process that has the whole model: each rank has a share of the data.

    Args:
        dist_context: the trial's processes, `context.distributed`.
    """
    return ModelParallelUnit(dist_context.rank, dist_context.size, True, True)


def make_deepspeed_mpu(topology: Any) -> ModelParallelUnit:
    """Return the unit of a process in a pipeline.

    Only the first and the last stage need data, there only the processes with slice rank 0. All
    processes report metrics.

    Args:
        topology: DeepSpeed's grid: `engine.mpu` of a PipelineEngine.
    """
    stage, last = topology.get_pipe_parallel_rank(), topology.get_pipe_parallel_world_size() - 1
    takes_data = topology.get_slice_parallel_rank() == 0 and stage in (0, last)
    rank, size = topology.get_data_parallel_rank(), topology.get_data_parallel_world_size()
    return ModelParallelUnit(rank, size, True, takes_data)


def overwrite_deepspeed_config(
    base_ds_config: str | dict[str, Any], source_ds_dict: dict[str, Any]
) -> dict[str, Any]:
    """Return DeepSpeed's configuration with other values. Sections are merged recursively.

    Args:
        base_ds_config: a dict, which stays unchanged, or the path of a JSON file.
        source_ds_dict: the values that take precedence.

    Raises:
        TypeError: the base is neither a path nor a dict.
        ValueError: the file is no JSON, or has duplicate keys.
    """
    if isinstance(base_ds_config, str):
        text = Path(base_ds_config).read_text(encoding="utf-8")
        base_ds_config = json.loads(text, object_pairs_hook=dict_raise_error_on_duplicate_keys)
    if not isinstance(base_ds_config, dict):
        raise TypeError(f"base_ds_config is {base_ds_config!r:.80}: expected a path or a dict")
    merged = copy.deepcopy(base_ds_config)
    for name, value in source_ds_dict.items():
        is_section = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = overwrite_deepspeed_config(merged[name], value) if is_section else value
    return merged


class DeepSpeedTrialContext(pytorch.PyTorchTrialContext):
    """The hyperparameters, engines and training position of a DeepSpeedTrial.

    `optimizations.mixed_precision` and `aggregation_frequency` of the configuration raise
    DetcloudError, because DeepSpeed's own configuration has these settings.
    """

    def __init__(self, core_context: core.Context) -> None:
        options = core_context.info.config.get("optimizations") or {}
        for name, neutral in (("mixed_precision", "O0"), ("aggregation_frequency", 1)):
            if options.get(name, neutral) != neutral:
                raise DetcloudError(
                    f"optimizations.{name} is {options[name]!r}: of a DeepSpeedTrial DeepSpeed's "
                    "own configuration says so"
                )
        super().__init__(core_context)
        core_context.loop.kind = TrainingLoop.DEEPSPEED
        self.mpu = make_data_parallel_mpu(core_context.distributed)
        self.use_pipeline_parallel = self.accumulates_itself = self.is_warm_start = False
        self._has_own_mpu = False

    @property
    def models(self) -> list[Any]:
        """The wrapped engines, in the order of the calls of `wrap_model_engine`."""
        return self.optimization.wrapped_models

    def wrap_model_engine(self, model: Any) -> Any:
        """Register an engine, whose state is then part of checkpoints, and return the engine.

        The batch sizes of the first engine count. If the first engine is a PipelineEngine, the
        context uses pipeline parallelism and the engine's topology.

        Args:
            model: an engine of `deepspeed.initialize`.
        """
        if isinstance(model, deepspeed.PipelineEngine) and not self.models:
            self.use_pipeline_parallel = True
            self.mpu = make_deepspeed_mpu(model.mpu)
        self.optimization.wrapped_models.append(model)
        return model

    def set_mpu(self, mpu: ModelParallelUnit) -> None:
        """Declare this process's share, for models that are split by other means than DeepSpeed's
        pipeline.

        Args:
            mpu: the share of this process.

        Raises:
            DetcloudError: this is a second call, or no engine is wrapped yet.
        """
        if self._has_own_mpu or not self.models:
            raise DetcloudError("set_mpu is called once, after wrap_model_engine")
        self._has_own_mpu, self.mpu = True, mpu

    def disable_auto_grad_accumulation(self) -> None:
        """Call `train_batch` once for each batch instead of once for each micro-batch."""
        self.accumulates_itself = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Accept data loaders of any kind.

        The loaders must divide the data between processes and skip trained batches by themselves.
        """
        self.experimental.disable_dataset_reproducibility_checks()

    @property
    def train_micro_batch_size_per_gpu(self) -> int:
        """The number of records in a process's micro-batch. Raises DetcloudError without an
        engine.
        """
        return int(self._first_engine().train_micro_batch_size_per_gpu())

    @property
    def num_micro_batches_per_slot(self) -> int:
        """The number of micro-batches per batch in a process. Raises DetcloudError without an
        engine.
        """
        return int(self._first_engine().gradient_accumulation_steps())

    # Determined's other names of both properties.

    @property
    def _train_micro_batch_size_per_gpu(self) -> int:
        return self.train_micro_batch_size_per_gpu

    def get_train_micro_batch_size_per_gpu(self) -> int:
        return self.train_micro_batch_size_per_gpu

    def get_num_micro_batches_per_slot(self) -> int:
        return self.num_micro_batches_per_slot

    def _first_engine(self) -> Any:
        if not self.models:
            raise DetcloudError("the trial has no engine yet: give one to wrap_model_engine")
        return self.models[0]


@contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    checkpoint_dir: str | Path | None = None,
    distributed: core.DistributedContext | None = None,
    enable_tensorboard_logging: bool = True,
) -> Iterator[DeepSpeedTrialContext]:
    """Yield a trial's context for a `Trainer` in your own script.

    First seed the random generators and join DeepSpeed's process group. With
    DET_MANUAL_INIT_DISTRIBUTED in the environment, the trial itself must join the group. The end of
    the block is as for `detcloud.pytorch.init`.

    Args:
        hparams: the hyperparameters, which replace those of the trial, also on a cluster. None for
            the trial's.
        exp_conf: the configuration of a run without a cluster.
        checkpoint_dir: the folder of checkpoints without a cluster.
        distributed: the trial's processes, if no launcher of detcloud started them.
        enable_tensorboard_logging: whether reported metrics are written as event files.

    Raises:
        DetcloudError: another process has this rank, or the specification, the checkpoint store or
            a launcher's variables are invalid.
    """
    with core.init(
        hparams=hparams,
        config=exp_conf,
        checkpoint_dir=checkpoint_dir,
        seed=ExperimentConfig(exp_conf or {}).experiment_seed(),
        distributed=distributed,
    ) as core_context:
        if get_accelerator().device_name() == "cpu":
            # Each trial would compile this extension for minutes; Gloo offers the same operations.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        if not os.environ.get("DET_MANUAL_INIT_DISTRIBUTED"):
            _join_process_group(core_context.distributed)
        seed_all(core_context.info.trial_seed)
        info = core_context.info if hparams is None else replace(core_context.info, hparams=hparams)
        context = DeepSpeedTrialContext(replace(core_context, info=info))
        context.set_enable_tensorboard_logging(enable_tensorboard_logging)
        try:
            yield context
        finally:
            context.close()


def _join_process_group(ranks: core.DistributedContext) -> None:
    """Join DeepSpeed's process group. A process alone forms a group at a free port.

    Set the missing variables of the group in the environment.
    """
    place = {"RANK": ranks.rank, "WORLD_SIZE": ranks.size, "LOCAL_RANK": ranks.local_rank}
    for name, value in {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}.items():
        os.environ.setdefault(name, str(value))
    deepspeed.init_distributed(auto_mpi_discovery=False)
