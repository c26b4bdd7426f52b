"""Training in several processes: torch's process group, and models that average gradients."""

from __future__ import annotations

import os
from typing import TypeVar

import torch
import torch.distributed as torch_distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from detcloud.core import DistributedContext
from detcloud.pytorch.distributed_model import DistributedModel

Value = TypeVar("Value")


def is_gang(distributed: DistributedContext) -> bool:
    """Return whether the trial has several processes that exchange values."""
    return distributed.size > 1 and distributed.can_exchange


def chief_value(distributed: DistributedContext, value: Value) -> Value:
    """Return the chief's value on every rank. In a trial of a single process, return `value`.

    All ranks must call this function. Raises DetcloudError if another process has exited.
    """
    return distributed.broadcast(value) if is_gang(distributed) else value


def join_process_group(distributed: DistributedContext) -> None:
    """Join torch's process group, with NCCL on GPUs and Gloo elsewhere. Select the rank's GPU.

    Do nothing for a single process or without connections. If a group exists, only select the GPU.
    The group lasts as long as the process: a second group would find the addresses of the first in
    torch's store. Set MASTER_ADDR and MASTER_PORT in the environment if they are missing. Wait for
    all processes; torch raises RuntimeError if a process does not join in time.
    """
    if distributed.size == 1 or not distributed.can_exchange:
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(distributed.local_rank)
    if torch_distributed.is_initialized():
        return
    # Only torch's own launcher sets these variables.
    os.environ.setdefault("MASTER_ADDR", os.environ.get("DET_CHIEF_IP", "127.0.0.1"))
    os.environ.setdefault("MASTER_PORT", os.environ.get("DETCLOUD_RENDEZVOUS_PORT", "29400"))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch_distributed.init_process_group(
        backend, rank=distributed.rank, world_size=distributed.size
    )


def distribute_model(
    model: torch.nn.Module, device: torch.device, bucket_mib: int | None = None
) -> torch.nn.Module:
    """Return a model that averages gradients over all processes, a DistributedModel.

    `device` is the device on which the model already is. Return `model` itself without a process
    group or trainable parameters. Gradients are exchanged in buckets of `bucket_mib` MiB, or of
    torch's default size for None. All processes must call this, and wait for each other. Raises
    errors of torch, such as RuntimeError for models that differ between processes.
    """
    if not torch_distributed.is_initialized() or not any(
        parameter.requires_grad for parameter in model.parameters()
    ):
        return model
    return DistributedModel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=bucket_mib,
    )


def compress_gradients(
    models: list[torch.nn.Module], parameters: list[torch.nn.Parameter] | None = None
) -> None:
    """Exchange gradients in half precision: for models with any of `parameters`, or all models.

    Models without an exchange and already compressed models stay unchanged. `parameters` of None
    means all models.
    """
    for model in models:
        if not isinstance(model, DistributedModel) or model.is_compressed:
            continue
        theirs = {id(parameter) for parameter in model.parameters()}
        if parameters is None or any(id(parameter) in theirs for parameter in parameters):
            model.register_comm_hook(None, fp16_compress_hook)
            model.is_compressed = True


def copy_buffers_of_chief(models: list[torch.nn.Module]) -> None:
    """Copy the chief's buffers to every rank, as the next training step would do.

    All ranks must call this. Do nothing without a process group.
    """
    if not torch_distributed.is_initialized():
        return
    for model in models:
        for buffer in model.buffers():
            torch_distributed.broadcast(buffer, 0)
