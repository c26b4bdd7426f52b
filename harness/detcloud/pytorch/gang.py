"""Training in several processes: torch's process group, and models whose gradients are averaged."""

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
    """Whether there are several processes, which exchange values."""
    return distributed.size > 1 and distributed.can_exchange


def chief_value(distributed: DistributedContext, value: Value) -> Value:
    """The chief's value, on every rank: what each process reads by itself may differ."""
    return distributed.broadcast(value) if is_gang(distributed) else value


def join_process_group(distributed: DistributedContext) -> None:
    """Join torch's process group: NCCL on GPUs, Gloo elsewhere.

    A process alone needs none, and a group that there is already is left as it is. It lasts as long
    as the process: a second one would find the addresses of the first in torch's store.
    """
    if distributed.size == 1 or not distributed.can_exchange:
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(distributed.local_rank)
    if torch_distributed.is_initialized():
        return
    # Launchers other than torch's own set no place to meet.
    os.environ.setdefault("MASTER_ADDR", os.environ.get("DET_CHIEF_IP", "127.0.0.1"))
    os.environ.setdefault("MASTER_PORT", os.environ.get("DETCLOUD_RENDEZVOUS_PORT", "29400"))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch_distributed.init_process_group(
        backend, rank=distributed.rank, world_size=distributed.size
    )


def distribute_model(
    model: torch.nn.Module, device: torch.device, bucket_mib: int | None = None
) -> torch.nn.Module:
    """The model with its gradients averaged over all processes; itself where it has none.

    Gradients are exchanged in buckets of `bucket_mib` MiB, of torch's own size where it is None.
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
    """Exchange gradients in half precision: of all models, or of those with these parameters."""
    for model in models:
        if not isinstance(model, DistributedModel) or model.is_compressed:
            continue
        theirs = {id(parameter) for parameter in model.parameters()}
        if parameters is None or any(id(parameter) in theirs for parameter in parameters):
            model.register_comm_hook(None, fp16_compress_hook)
            model.is_compressed = True


def copy_buffers_of_chief(models: list[torch.nn.Module]) -> None:
    """Give every rank the chief's buffers, as the next step would: they belong to one model."""
    if not torch_distributed.is_initialized():
        return
    for model in models:
        for buffer in model.buffers():
            torch_distributed.broadcast(buffer, 0)
