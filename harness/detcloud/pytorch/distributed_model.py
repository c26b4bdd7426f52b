"""Models whose gradients are averaged over several processes, however the code uses them.

Torch's DistributedDataParallel averages in the backward pass, while it goes on, but only in a pass
after a call of the model, and only where the pass reaches every parameter. If the code calls a part
or a method instead, ranks keep gradients of their own, and a parameter that gets none is an error.
Horovod, by which Determined trained, averaged before a step whatever there was. So is a model that
is used like that, from the first such batch on (decision 0088).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_distributed
from torch.nn.parallel import DistributedDataParallel

from detcloud.shared.errors import DetcloudError

# How long ranks wait for each other until all have found the same.
AGREEMENT_SECONDS = 60
_UNREACHED = "a backward pass does not reach all of its parameters"
_UNSEEN = "the code calls a part or a method of it, or passes backward twice after one call"


class _BatchUse:
    """How a batch used a model. Modules are slow to set an attribute of, which every batch does."""

    __slots__ = (
        "awaits_first",
        "awaits_last",
        "is_averaged",
        "is_over",
        "was_called",
        "was_missed",
    )

    def __init__(self) -> None:
        self.is_averaged = True
        """Whether the backward passes of the batch average."""
        self.was_called = self.was_missed = False
        """Whether the batch called the model, and whether a gradient came that was not averaged."""
        self.awaits_first = self.awaits_last = False
        """Whether the next gradient of the first or the last parameter is averaged."""
        self.is_over = True
        """Whether all passes after the last call are known to have reached every parameter."""

    def begin(self, *, is_averaged: bool) -> None:
        self.is_averaged = is_averaged
        self.was_called = self.was_missed = self.awaits_first = self.awaits_last = False

    def note_call(self) -> None:
        self.was_called = self.awaits_first = self.awaits_last = True
        self.is_over = False

    def note_first_gradient(self, _: torch.Tensor) -> None:
        if self.is_averaged:
            self.was_missed |= not self.awaits_first
            self.awaits_first = False

    def note_last_gradient(self, _: torch.Tensor) -> None:
        if self.is_averaged:
            self.was_missed |= not self.awaits_last
            self.awaits_last = False


class DistributedModel(DistributedDataParallel):
    """A model whose gradients are averaged over all processes; its weights are named as alone.

    Without gradients it is the model itself, so that ranks may evaluate as many batches as they
    like.
    """

    is_compressed = False
    averages_at_step = False
    """Whether `settle` averages the gradients, and the backward pass does not."""

    def __init__(self, module: torch.nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        trained = [one for one in module.parameters() if one.requires_grad]
        self._use = _BatchUse()
        # Two stand for all: each hook costs time in every pass.
        first: Any = trained[0]
        last: Any = trained[-1]
        first.register_post_accumulate_grad_hook(self._use.note_first_gradient)
        if last is not first:
            last.register_post_accumulate_grad_hook(self._use.note_last_gradient)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        if self.averages_at_step or not torch.is_grad_enabled():
            return self.module(*inputs, **options)
        if self.require_backward_grad_sync:
            if not self._use.is_over and self._is_unfinished():
                # What the pass before reached belongs to a step of another optimizer.
                self._average_at_steps(_UNREACHED)
                return self.module(*inputs, **options)
            self._use.note_call()
        averaging: Any = super().forward
        return averaging(*inputs, **options)

    def begin_batch(self, *, is_step: bool) -> None:
        """Average the gradients of a batch only if a step follows it."""
        if self.require_backward_grad_sync != is_step:
            self.require_backward_grad_sync = is_step
        self._use.begin(is_averaged=is_step)

    @property
    def is_settled(self) -> bool:
        """Whether the backward passes of this batch have averaged all gradients, as almost always:
        then `settle` has nothing to do.
        """
        use = self._use
        if self.averages_at_step or not use.was_called or use.was_missed:
            return False
        use.is_over = not self._is_unfinished()
        return use.is_over

    def settle(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Average the gradients of parameters over the processes, unless the backward passes of
        this batch have done so; every rank calls it, before a step.

        Raises DetcloudError where the ranks do not find the same within AGREEMENT_SECONDS.
        """
        if not self.averages_at_step:
            reason = self._find_omission(parameters)
            if not reason:
                return
            self._average_at_steps(reason)
        average_gradients(parameters, is_compressed=self.is_compressed)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.module.state_dict(*arguments, **options)

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.module.load_state_dict(*arguments, **options)

    def _find_omission(self, parameters: Sequence[torch.nn.Parameter]) -> str:
        """Why gradients of this batch were not averaged, "" if they were."""
        if self._is_unfinished():
            return _UNREACHED
        use = self._use
        has_own = not use.was_called and any(one.grad is not None for one in parameters)
        return _UNSEEN if has_own or use.was_missed else ""

    def _is_unfinished(self) -> bool:
        """Whether the last backward pass left parameters out, so that none were averaged."""
        untyped: Any = self
        try:
            untyped._check_reducer_finalized()
        except RuntimeError:
            return True
        return False

    def _average_at_steps(self, reason: str) -> None:
        """Leave the averaging to the steps from now on, if all ranks do."""
        name = type(self.module).__name__
        try:
            # To make a group is to wait for the others, which may hang in their backward pass. It
            # stays: if one rank ended it, others might not have it yet.
            torch_distributed.new_group(
                backend="gloo", timeout=timedelta(seconds=AGREEMENT_SECONDS)
            )
        except RuntimeError as error:
            raise DetcloudError(
                f"model {name}: {reason} on rank {torch_distributed.get_rank()} and not on all "
                "ranks: let every batch use the same parameters on every rank, for instance by "
                "adding 0 times the sum of the others to the loss"
            ) from error
        untyped: Any = self
        untyped._remove_autograd_hooks()
        self.averages_at_step = True
        if torch_distributed.get_rank() == 0:
            print(
                f"[detcloud] model {name}: {reason}; its gradients are averaged before each step "
                "instead, which takes longer",
                flush=True,
            )


def average_gradients(
    parameters: Sequence[torch.nn.Parameter], *, is_compressed: bool = False
) -> None:
    """Average the gradients of parameters over all processes, in half precision if compressed.

    A gradient that only some ranks have counts as 0 on the others; one that no rank has stays None.
    """
    trained = [one for one in parameters if one.requires_grad]
    kinds = {(one.dtype, one.device) for one in trained}
    for dtype, device in sorted(kinds, key=str):
        alike = [one for one in trained if (one.dtype, one.device) == (dtype, device)]
        has_gradient = torch.tensor([one.grad is not None for one in alike], device=device)
        holders = has_gradient.to(torch.int32)
        torch_distributed.all_reduce(holders)
        held = [one for one, count in zip(alike, holders.tolist(), strict=True) if count]
        if held:
            _average_held(held, torch.float16 if is_compressed else dtype)


def _average_held(parameters: list[torch.nn.Parameter], dtype: torch.dtype) -> None:
    gradients = [
        torch.zeros_like(one) if one.grad is None else one.grad.detach().to_dense()
        for one in parameters
    ]
    flat: Any = torch.cat([gradient.reshape(-1) for gradient in gradients]).to(dtype)
    # Divided first, so that a sum in half precision does not overflow.
    flat.div_(torch_distributed.get_world_size())
    torch_distributed.all_reduce(flat)
    sizes = [one.numel() for one in parameters]
    for one, part in zip(parameters, flat.split(sizes), strict=True):
        one.grad = part.reshape(one.shape).to(one.dtype)
