"""The state of a training: its content, when checkpoints are stored, and how training resumes.

All processes of a trial save at the same batches. The chief stores the state for all.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from detcloud.compatibility.functions import VERSION
from detcloud.core import Choice
from detcloud.pytorch import generators, snapshot
from detcloud.pytorch.callback import PyTorchCallback
from detcloud.pytorch.context import PyTorchTrialContext
from detcloud.pytorch.gang import chief_value, is_gang
from detcloud.pytorch.hooks import Hooks
from detcloud.pytorch.metrics import MetricAverage
from detcloud.pytorch.optimization import MODELS, OPTIMIZERS, SCHEDULERS
from detcloud.pytorch.plan import Plan
from detcloud.pytorch.restricted_pickle import without_unreadable
from detcloud.pytorch.saving import StateStore
from detcloud.pytorch.stored_code import write_code
from detcloud.pytorch.trial import PyTorchTrial
from detcloud.pytorch.workloads import Position
from detcloud.shared.trial_directory import EPOCHS

APEX = "amp_state"
STATE_PARTS = (
    MODELS,
    OPTIMIZERS,
    SCHEDULERS,
    "gradients",
    "callbacks",
    "average",
    "position",
    "generators",
)


def checkpoint_metadata(steps: int) -> dict[str, Any]:
    """Return the metadata of a trial's checkpoint after `steps` batches, with Determined's keys.

    The keys are `steps_completed`, `framework` (torch and its version), `format` and
    `determined_version`.
    """
    return {
        "steps_completed": steps,
        "framework": f"torch-{torch.__version__}",
        "format": "pickle",
        "determined_version": VERSION,
    }


class TrainingState:
    """The position of a training and the averages of the open workload, saved and restored.

    `observed_validation`: hooks of the last validation may have changed the state.
    """

    def __init__(
        self, trial: PyTorchTrial, context: PyTorchTrialContext, hooks: Hooks, plan: Plan
    ) -> None:
        """Create the state at batch 0. Load nothing yet."""
        self._trial, self._context, self._hooks, self._plan = trial, context, hooks, plan
        self._core = context.core
        self._is_gang = is_gang(context.distributed)
        self._store = StateStore(
            context.core, writes_in_step=hooks.overrides(PyTorchCallback.on_checkpoint_write_end)
        )
        # The checkpoint for which `on_checkpoint_upload_end` has still to be called.
        self._unfinished_save: str | None = None
        self.position = Position()
        self.average = MetricAverage()
        self.observed_validation = False

    def restore(self) -> dict[str, Any] | None:
        """Load the plan's checkpoint, and return the generators' state, to be restored later.

        Return None without a checkpoint, and after a warm start, which loads only the weights. All
        processes call this. Raises DetcloudError if the checkpoint cannot be read or does not fit
        the trial, or if another process has exited. Raises errors of the hooks.
        """
        if self._plan.checkpoint is None:
            return None
        with self._core.checkpoint.loading.watch(self._plan.checkpoint):
            return self._restore()

    def _restore(self) -> dict[str, Any] | None:
        """Load the checkpoint into models, optimizers, callbacks, averages and position.

        All processes call this. Return the generators' state, to be restored later. After a warm
        start, which loads only the weights, return None. Raises DetcloudError if the checkpoint
        cannot be read or does not fit the trial, and errors of the hooks.
        """
        state = self._load()
        if state is None:
            return None
        self.average.load_state_dict(state["average"], self._context.device)
        callbacks = without_unreadable(state["callbacks"], "callbacks")
        for name, callback in self._hooks.callbacks.items():
            if name in callbacks:
                callback.load_state_dict(callbacks[name])
        distributed = self._context.distributed
        answered = chief_value(distributed, self._answered_batches())
        known = self._core.info.validated_steps
        position = Position(**state["position"])
        self.position = position.after_restart(self._plan.schedule, answered, known)
        generator_states: dict[str, Any] = state["generators"]
        return generator_states

    def _answered_batches(self) -> int:
        """Return the length, in batches, for which the searcher has got a metric.

        Raises DetcloudError if the cluster's file of directives is malformed.
        """
        directives = self._core.read_directives()
        is_epochs = directives.length_unit == EPOCHS
        return directives.answered * (self._plan.epoch_length if is_epochs else 1)

    def save_if_stale(self, *, is_last: bool = False) -> None:
        """Save the state unless a checkpoint has it already. All processes call this.

        `is_last`: nothing follows, so the state is stored before the return. Otherwise it may be
        stored in the background. Raises DetcloudError if this or the previous checkpoint cannot be
        stored or another process has exited, and errors of the hooks.
        """
        if self._is_stale():
            self._save(is_last=is_last)

    def save_before_leaving(self) -> None:
        """Save an unsaved state before the process ends. All processes call this.

        A save is stored completely before the return. Without an interruption notice, save if the
        state is unsaved. After a notice, the chief chooses by the time left, for all processes:
        save, leave the running upload for `finish_save` to await, or give up the running upload.
        After giving up, `finish_save` does nothing.

        Raises DetcloudError if storing fails, now or for the previous checkpoint, or if another
        process has exited. Raises errors of the hooks.
        """
        plan = self._core.plan_last_save
        choice = plan(is_saved=not self._is_stale()) if self._core.is_chief else Choice.SAVE
        choice = chief_value(self._context.distributed, choice)
        if choice is Choice.SAVE:
            self.save_if_stale(is_last=True)
        elif choice is Choice.KEEP:
            # The chief's plan has abandoned its save already. Other processes follow.
            self._core.checkpoint.saves.abandon()
            self._unfinished_save = None

    def finish_save(self) -> None:
        """Wait for the checkpoint in the background, and call `on_checkpoint_upload_end`.

        All processes call this, and wait until the chief has stored the checkpoint. Do nothing if
        no checkpoint is unfinished. Raises DetcloudError if storing failed or another process has
        exited, and errors of the hook.
        """
        uuid, self._unfinished_save = self._unfinished_save, None
        if uuid is None:
            return
        self._core.checkpoint.wait()
        # Other processes wait here until the chief has stored the checkpoint.
        chief_value(self._context.distributed, None)
        self._hooks.call(PyTorchCallback.on_checkpoint_upload_end, uuid)

    def finish_stored_save(self) -> None:
        """Call `on_checkpoint_upload_end` if a callback has it and the background save is done.

        All processes call this and follow the chief. Raises DetcloudError if storing failed or
        another process has exited, and errors of the hook.
        """
        if self._unfinished_save is None or not self._hooks.overrides(
            PyTorchCallback.on_checkpoint_upload_end
        ):
            return
        is_done = self._core.checkpoint.saves.running is None
        if chief_value(self._context.distributed, is_done):
            self.finish_save()

    def _is_stale(self) -> bool:
        """Return whether no checkpoint has the present state.

        Hooks of a validation may have changed the state after a checkpoint.
        """
        observed = self.observed_validation and self.position.steps > 0
        return observed or not self.position.is_saved

    def _save(self, *, is_last: bool) -> None:
        """Store the state on the chief after the previous checkpoint, and share the UUID.

        All processes call this. If everything is stored, call `on_checkpoint_upload_end`. With
        `is_last`, everything is stored before the return. Raises DetcloudError if storing fails,
        now or for the previous checkpoint, or if another process has exited. Raises errors of the
        hooks.
        """
        self.finish_save()
        steps = self.position.steps
        self.position = replace(self.position, saved=steps)
        ranks = self._gathered_rank_states()
        stored = self._store_state(steps, ranks, is_last) if self._core.is_chief else ("", False)
        self._unfinished_save, is_stored = chief_value(self._context.distributed, stored)
        self.observed_validation = False
        if is_stored:
            self.finish_save()

    def _store_state(
        self, steps: int, ranks: list[dict[str, Any]], is_last: bool
    ) -> tuple[str, bool]:
        """Store the trial's state on the chief; return the UUID, and whether storing is over.

        `ranks` are the states of all processes, or empty. Call the hooks of saving. With `is_last`,
        everything is stored before the return. Otherwise storing may continue in the background.
        Raises DetcloudError if the state has other objects than tensors and plain data, or if this
        or the previous state cannot be stored. Raises errors of the hooks.
        """
        state = {
            **self._context.optimization.state_dict(),
            APEX: self._context.precision.state_dict(),
            **self._loop_state(),
            **({"ranks": ranks} if ranks else {}),
        }
        self._hooks.call(PyTorchCallback.on_checkpoint_save_start, state)

        def finish(folder: Path) -> None:
            write_code(folder, self._trial, self._core)
            self._hooks.call(PyTorchCallback.on_checkpoint_write_end, folder)

        return self._store.store(state, checkpoint_metadata(steps), finish, is_last=is_last)

    def _loop_state(self) -> dict[str, Any]:
        """Return the loop's state in this process: callbacks, averages, position and generators."""
        callbacks = self._hooks.callbacks.items()
        return {
            "callbacks": {name: callback.state_dict() for name, callback in callbacks},
            "average": self.average.state_dict(),
            "position": asdict(self.position),
            "generators": generators.capture_state(),
        }

    def _gathered_rank_states(self) -> list[dict[str, Any]]:
        """Return the states that differ between processes, by rank, on the chief.

        Empty on other ranks and for a single process. All processes call this.
        """
        if not self._is_gang:
            return []
        ours: dict[str, Any] = {
            "average": self.average.state_dict(),
            "generators": generators.capture_state(),
        }
        if self._context.optimization.aggregation_frequency > 1:
            ours["gradients"] = self._context.optimization.gradients()
        return self._core.distributed.gather(ours) or []

    def _load(self) -> dict[str, Any] | None:
        """Load models and optimizers from the checkpoint; return the state of this process's loop.

        Return None after a warm start, which loads only the weights. If as many processes wrote the
        checkpoint, the average, generators and gradients are those of this process's rank.
        Otherwise they are the chief's. Call `on_checkpoint_load_start`. Raises DetcloudError if the
        checkpoint cannot be read or does not fit the trial, and errors of the hook.
        """
        assert self._plan.checkpoint is not None
        optimization, distributed = self._context.optimization, self._core.distributed
        with self._core.checkpoint.restore_path(self._plan.checkpoint) as folder:
            parts = (MODELS,) if self._plan.warm_start else STATE_PARTS
            state = snapshot.load_state(folder, parts, self._plan.first_batch)
        self._hooks.call(PyTorchCallback.on_checkpoint_load_start, state)
        if self._plan.warm_start:
            optimization.load_models(state)
            return None
        optimization.load_state_dict(state)
        ranks = state.get("ranks", [])
        if len(ranks) == distributed.size:
            state = {**state, **ranks[distributed.rank]}
            optimization.load_gradients(state["gradients"])
        self._context.precision.load_state_dict(state.get(APEX, {}))
        return state
