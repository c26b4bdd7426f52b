"""Models that average gradients over several processes, for any use by the trial's code.

Torch's DistributedDataParallel averages during the backward pass. It does so only after a call of
the whole model, and only if the pass reaches every parameter. If the code calls a part or a method
instead, each rank keeps gradients of its own. A parameter without a gradient is an error. Horovod,
which Determined used, averaged before a step in all cases. So does a model here, from the first
batch that DistributedDataParallel cannot average (decision 0088).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_distributed
from torch.nn.parallel import DistributedDataParallel

from detcloud.shared.errors import DetcloudError

# How long ranks wait until all ranks have found an omission.
AGREEMENT_SECONDS = 60
_UNREACHED = "a backward pass does not reach all of its parameters"
_UNSEEN = "the code calls a part or a method of it, or passes backward twice after one call"


class _BatchUse:
    """The use of a model in a batch. Setting an attribute of a Module would be slow."""

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
        """Whether the backward passes of this batch average gradients."""
        self.was_called = self.was_missed = False
        """Whether the batch called the model, and whether a gradient was not averaged."""
        self.awaits_first = self.awaits_last = False
        """Whether the next gradient of the first or the last parameter is averaged."""
        self.is_over = True
        """Whether all passes after the last call are known to have reached every parameter."""

    def begin(self, *, is_averaged: bool) -> None:
        """Begin a batch, and forget the use in the batch before."""
        self.is_averaged = is_averaged
        self.was_called = self.was_missed = self.awaits_first = self.awaits_last = False

    def note_call(self) -> None:
        """Note that the code calls the whole model, so that a backward pass averages gradients."""
        self.was_called = self.awaits_first = self.awaits_last = True
        self.is_over = False

    def note_first_gradient(self, _: torch.Tensor) -> None:
        """Note a gradient of the first parameter, which is missed unless a new call precedes.

        Do nothing in a batch that averages no gradients.
        """
        if self.is_averaged:
            self.was_missed |= not self.awaits_first
            self.awaits_first = False

    def note_last_gradient(self, _: torch.Tensor) -> None:
        """Note a gradient of the last parameter, which is missed unless a new call precedes.

        Do nothing in a batch that averages no gradients.
        """
        if self.is_averaged:
            self.was_missed |= not self.awaits_last
            self.awaits_last = False


class DistributedModel(DistributedDataParallel):
    """A model that averages gradients over all processes. Parameters have the names of `module`.

    Without gradients, calls go to `module` directly, so that ranks may evaluate different numbers
    of batches. Unknown attributes are those of `module`.
    """

    is_compressed = False
    averages_at_step = False
    """Whether `settle` averages the gradients instead of the backward pass."""

    def __init__(self, module: torch.nn.Module, **options: Any) -> None:
        """Wrap `module`, which needs a trainable parameter and a process group.

        `options` go to torch's DistributedDataParallel. Waits for all processes.
        """
        super().__init__(module, **options)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._use = _BatchUse()
        # Two parameters represent all, because each hook costs time in every pass.
        first: Any = trained[0]
        last: Any = trained[-1]
        first.register_post_accumulate_grad_hook(self._use.note_first_gradient)
        if last is not first:
            last.register_post_accumulate_grad_hook(self._use.note_last_gradient)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the module. With gradients, prepare the averaging in the backward pass.

        If the last backward pass missed parameters, average before each step from now on; rank 0
        prints a notice. Raises DetcloudError if the pass missed parameters only on some ranks.
        """
        if self.averages_at_step or not torch.is_grad_enabled():
            return self.module(*inputs, **options)
        if self.require_backward_grad_sync:
            if not self._use.is_over and self._is_unfinished():
                # The previous backward pass did not reach all parameters. Its gradients belong to
                # the step of another optimizer.
                self._average_at_steps(_UNREACHED)
                return self.module(*inputs, **options)
            self._use.note_call()
        averaging: Any = super().forward
        return averaging(*inputs, **options)

    def begin_batch(self, *, is_step: bool) -> None:
        """Begin a batch, and forget the use of the model in the batch before.

        The batch's gradients are averaged only if an optimizer step follows (`is_step`).
        """
        if self.require_backward_grad_sync != is_step:
            self.require_backward_grad_sync = is_step
        self._use.begin(is_averaged=is_step)

    @property
    def is_settled(self) -> bool:
        """Whether the backward passes of this batch are known to have averaged all gradients.

        If True, a call of `settle` is not needed. This result is remembered, so that the next call
        of the model does not check again. False if the batch has not called the whole model, if a
        pass missed a gradient, or if `settle` averages in any case (`averages_at_step`).
        """
        use = self._use
        if self.averages_at_step or not use.was_called or use.was_missed:
            return False
        use.is_over = not self._is_unfinished()
        return use.is_over

    def settle(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Average the parameters' gradients over processes unless the backward passes have done so.

        Every rank calls this method before a step. If the backward passes of this rank have
        averaged all gradients, return at once, without an exchange.

        If the passes missed gradients, wait until every rank has found the same. Then set
        `averages_at_step`, so that later batches are always averaged here; rank 0 prints a notice.
        Raises DetcloudError if only some ranks find this within AGREEMENT_SECONDS.
        """
        if not self.averages_at_step:
            reason = self._find_omission(parameters)
            if not reason:
                return
            self._average_at_steps(reason)
        average_gradients(parameters, is_compressed=self.is_compressed)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped module, or raise AttributeError."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Return the state of the wrapped module, with the names of `module`."""
        return self.module.state_dict(*arguments, **options)

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Load a state of the wrapped module. Arguments, result and errors are those of torch."""
        return self.module.load_state_dict(*arguments, **options)

    def _find_omission(self, parameters: Sequence[torch.nn.Parameter]) -> str:
        """Return why this rank's gradients of this batch were not averaged, or "" if they were.

        Return "" as well if the batch has no gradients. Exchange nothing with other ranks.
        """
        if self._is_unfinished():
            return _UNREACHED
        use = self._use
        has_gradient = any(parameter.grad is not None for parameter in parameters)
        has_own = not use.was_called and has_gradient
        return _UNSEEN if has_own or use.was_missed else ""

    def _is_unfinished(self) -> bool:
        """Return whether the last backward pass missed parameters, so that nothing was averaged."""
        untyped: Any = self
        try:
            untyped._check_reducer_finalized()
        except RuntimeError:
            return True
        return False

    def _average_at_steps(self, reason: str) -> None:
        """Wait until all ranks call this, and set `averages_at_step`. Rank 0 prints the reason.

        From now on, `settle` averages the gradients before each optimizer step, and the backward
        pass no longer does. Raises DetcloudError if a rank does not call this within
        AGREEMENT_SECONDS.
        """
        name = type(self.module).__name__
        try:
            # Creating a group waits for all ranks. A rank may hang in a backward pass. The group is
            # not destroyed: a fast rank could destroy it before slow ranks have joined.
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
    """Average the parameters' gradients over all processes, in half precision if compressed.

    A gradient that only some ranks have counts as 0 on the others. A gradient that no rank has
    stays None. All ranks must call this function with the same parameters.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    kinds = {(parameter.dtype, parameter.device) for parameter in trained}
    for dtype, device in sorted(kinds, key=str):
        alike = [x for x in trained if (x.dtype, x.device) == (dtype, device)]
        has_gradient = torch.tensor([x.grad is not None for x in alike], device=device)
        counts = has_gradient.to(torch.int32)
        torch_distributed.all_reduce(counts)
        used = [x for x, count in zip(alike, counts.tolist(), strict=True) if count]
        if used:
            _average_used(used, torch.float16 if is_compressed else dtype)


def _average_used(parameters: list[torch.nn.Parameter], dtype: torch.dtype) -> None:
    """Replace the parameters' gradients by the averages over all processes, exchanged as `dtype`.

    All parameters have equal types and devices. A missing gradient counts as 0. All ranks must call
    this with equal parameters.
    """
    gradients = [
        torch.zeros_like(parameter)
        if parameter.grad is None
        else parameter.grad.detach().to_dense()
        for parameter in parameters
    ]
    flat: Any = torch.cat([gradient.reshape(-1) for gradient in gradients]).to(dtype)
    # Dividing before the sum avoids an overflow in half precision.
    flat.div_(torch_distributed.get_world_size())
    torch_distributed.all_reduce(flat)
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, flat.split(sizes), strict=True):
        parameter.grad = part.reshape(parameter.shape).to(parameter.dtype)
