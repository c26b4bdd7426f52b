"""Facts about a trial: hyperparameters, configuration, ids and batch sizes."""

from __future__ import annotations

from typing import Any

from detcloud import core
from detcloud.shared.errors import InvalidValue


class TrialFacts:
    """Facts from a trial's specification and processes. A base of PyTorchTrialContext."""

    def __init__(self, core_context: core.Context) -> None:
        self.core = core_context
        self.distributed = core_context.distributed
        self._is_told_of_batch_size = False

    def get_hparams(self) -> dict[str, Any]:
        """Return the hyperparameters. The dict is not a copy."""
        return self.core.info.hparams

    def get_hparam(self, name: str) -> Any:
        """Return a hyperparameter.

        Args:
            name: the name in the configuration's `hyperparameters`.

        Raises:
            InvalidValue: the name is unknown. The message has the known names.
        """
        hparams = self.core.info.hparams
        if name not in hparams:
            known = ", ".join(sorted(hparams)) or "none"
            raise InvalidValue(
                f"hyperparameter {name!r} does not exist; there are: {known}. Add it below "
                "hyperparameters in the experiment's configuration"
            )
        return hparams[name]

    def get_global_batch_size(self) -> int:
        """Return `get_per_slot_batch_size()` times the number of slots.

        This is the hyperparameter `global_batch_size`, rounded down to a multiple of the slots. If
        a rest is dropped, the chief prints a notice, once.

        Raises:
            InvalidValue: the hyperparameter is no integer, or less than the number of slots.
        """
        return self.get_per_slot_batch_size() * self.distributed.size

    def get_per_slot_batch_size(self) -> int:
        """Return the hyperparameter `global_batch_size` divided by the number of slots, rounded
        down.

        If a rest is dropped, the chief prints a notice, once.

        Raises:
            InvalidValue: the hyperparameter is no integer, or less than the number of slots.
        """
        size, slots = self.get_hparam("global_batch_size"), self.distributed.size
        if isinstance(size, bool) or not isinstance(size, int) or size < slots:
            raise InvalidValue(
                f"hyperparameter global_batch_size is {size!r}: an integer of at least the number "
                f"of slots, {slots}, was expected"
            )
        if size % slots and self.core.is_chief and not self._is_told_of_batch_size:
            self._is_told_of_batch_size = True
            print(
                f"[detcloud] global_batch_size {size} is rounded down to {size // slots * slots}, "
                f"a multiple of the {slots} slots",
                flush=True,
            )
        return size // slots

    def get_experiment_config(self) -> dict[str, Any]:
        """Return the experiment's configuration. The dict is not a copy."""
        return self.core.info.config

    def get_data_config(self) -> dict[str, Any]:
        """Return the section `data` of the configuration, or an empty dict without the section."""
        return self.core.info.config.get("data") or {}

    def get_experiment_id(self) -> int:
        """Return the experiment's id, 0 without a cluster."""
        return self.core.info.experiment_id

    def get_trial_id(self) -> int:
        """Return the trial's id, 0 without a cluster."""
        return self.core.info.trial_id

    def get_trial_seed(self) -> int:
        """Return the seed from which the trial's generators are seeded."""
        return self.core.info.trial_seed
