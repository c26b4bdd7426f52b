"""Backward passes of a distributed model in two processes; a script: `gradient_gang.py ROOT`.

The script runs each way to call the model, and writes the gradients to ROOT/found-RANK.json.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from detcloud.pytorch import distributed_model
from detcloud.pytorch.distributed_model import DistributedModel
from detcloud.shared.errors import DetcloudError

BATCHES = 2


class Pair(torch.nn.Module):
    """Model with two weights, multiplied with the input separately."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x), self.second(x)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return sum(self(x), torch.zeros(1))


def call_whole(model: Any, x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield sum(model(x))


def call_method(model: Any, x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield model.loss(x)


def call_part(model: Any, x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield model.second(x)


def leave_part_out(model: Any, x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield model(x)[1]


def pass_back_twice(model: Any, x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the losses of two calls; only the second backward pass averages gradients."""
    first, second = sum(model(x)), sum(model(2 * x))
    yield first
    yield second


def leave_part_out_on_one_rank(model: Any, x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield model(x)[1] if x.item() > 1 else sum(model(x))


WAYS: list[Callable[[Any, torch.Tensor], Iterator[torch.Tensor]]] = [
    call_whole,
    call_method,
    call_part,
    leave_part_out,
    pass_back_twice,
]


def run_batches(way: Any, rank: int) -> dict[str, Any]:
    """Run batches with the input `rank` + 1; return the gradients of both weights."""
    model = DistributedModel(Pair())
    parameters = list(model.parameters())
    for _ in range(BATCHES):
        model.zero_grad()
        model.begin_batch(is_step=True)
        for loss in way(model, torch.full((1,), rank + 1.0)):
            loss.backward()
        model.settle(parameters)
    gradients = [
        None if parameter.grad is None else parameter.grad.item() for parameter in parameters
    ]
    return {"gradients": gradients, "at_step": model.averages_at_step}


def main(root: Path, rank: int) -> None:
    results: dict[str, Any] = {way.__name__: run_batches(way, rank) for way in WAYS}
    (root / f"found-{rank}.json").write_text(json.dumps(results))
    distributed_model.AGREEMENT_SECONDS = 1
    try:
        run_batches(leave_part_out_on_one_rank, rank)
    except DetcloudError as error:
        (root / f"refused-{rank}").write_text(str(error))
    # Rank 0 still waits in its backward pass.
    os._exit(0)


def fork_gang(root: Path) -> None:
    """Run `main` in this process (rank 1) and in a forked process (rank 0)."""
    child = os.fork()
    rank = 1 if child else 0
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{root}/store", rank=rank, world_size=2
    )
    if child:
        try:
            main(root, rank)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    main(root, rank)


if __name__ == "__main__":
    fork_gang(Path(sys.argv[1]))
