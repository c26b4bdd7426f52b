"""A trial that the cluster has assigned to this node, as input of the container runtimes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation.start_times import StartTimes
from detcloud.agent.assignment.environment import (
    gang_variables,
    slot_type,
    trial_environment,
    without_user_variables,
)
from detcloud.agent.assignment.slot_sharing import share_variables
from detcloud.agent.assignment.startup_hook import HOOK_FILE, hook_command
from detcloud.compatibility.variables import determined_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from detcloud.agent.allocation.directory import AllocationDirectory
    from detcloud.agent.layer_archives.trial_layers import TrialLayers
    from detcloud.agent.slots import Slot


class LaunchImpossible(Exception):
    """The trial's own request cannot be met. The message says why, and what the user should do.

    Attributes:
        is_lasting: whether no machine can meet the request, so that a restart would fail, too.
    """

    def __init__(self, message: str, *, is_lasting: bool = False) -> None:
        super().__init__(message)
        self.is_lasting = is_lasting


@dataclass(frozen=True, slots=True)
class Assignment:
    """A trial to be run on this node."""

    directory: AllocationDirectory
    """The allocation's directory, with the unpacked model code."""
    spec: Mapping[str, Any]
    """The trial's spec, without secrets, as in/spec.json contains it."""
    slots: Sequence[Slot]
    """The slots of the trial on this node."""
    threads: int
    """The CPU threads for each slot."""
    log_bytes_max: int
    """The size limit of the trial's log."""
    variables: object = field(default=None, repr=False)
    """The configuration's environment variables with their secrets, see `variables_by_name`."""
    registry_auth: object = field(default=None, repr=False)
    """The configuration's registry login with its secrets, or None."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables by which the trial finds its keys and the region."""
    issue_login: Callable[[str], Mapping[str, str] | None] | None = None
    """Fetches a registry login for an image, see `TrialGrants.fetch_login`.

    None if the cluster issues no logins.
    """
    code_sha256: str = ""
    """The digest of the model code's archive. "" without model code."""
    packages: Mapping[str, Any] | None = field(default=None, repr=False)
    """The packages to install before the trial, or None.

    `declared_packages` of the server's `environment.py` defines the fields.
    """
    keeps_kernels: bool = False
    """Whether the machine keeps compiled kernels between runs."""
    layers: TrialLayers | None = field(default=None, repr=False)
    """The archives of the experiment's layers. None if the agent does not use archives."""
    start_times: StartTimes = field(default_factory=StartTimes)
    """The durations of the trial's start, to which runtimes add the phases that they run."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The experiment's configuration, without secrets. Empty if the spec has none."""
        config = self.spec.get("config")
        return config if isinstance(config, dict) else {}

    @property
    def device(self) -> str:
        """The type of the trial's slots: `cuda`, `rocm`, `mps` or `cpu`. `cpu` without slots."""
        return slot_type(self.slots)

    @property
    def uses_gpus(self) -> bool:
        """Whether the trial's slots are GPUs. False without slots."""
        return self.device != "cpu"

    def slot_notices(self) -> list[str]:
        """Return a log line if the trial has several slots and some are MIG instances."""
        instances = [slot for slot in self.slots if slot.gpu]
        if not instances or len(self.slots) == 1:
            return []
        numbers = ", ".join(str(slot.id) for slot in instances)
        return [
            f"[detcloud] slots {numbers} are MIG instances: a process uses only the first, and "
            "NCCL connects none; use slots_per_trial: 1"
        ]

    @property
    def has_hook(self) -> bool:
        """Whether the unpacked model code contains a startup hook."""
        return (self.directory.code / HOOK_FILE).is_file()

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the configuration. Empty if the section is missing or no object."""
        section = self.config.get(name)
        return section if isinstance(section, dict) else {}

    def stages(
        self,
        python: str,
        records: Path,
        *,
        install: Sequence[str] = (),
        enter: Sequence[str] = (),
        after_hook: Sequence[str] = (),
    ) -> list[tuple[str, list[str]]]:
        """Return the names and command lines of all stages, in order.

        The stages are `packages` with an `install` command, `hook` if the code has a hook, and
        always `trial`. The shell of the hook creates PASSED_FILE in `records` and then becomes the
        trial; the supervisor skips the stage `trial` if the file exists. If the hook itself exits
        with 0, the supervisor runs the stage `trial`.

        Args:
            python: the interpreter of the trial.
            records: the folder of the supervisor's records.
            install: the command that installs declared packages. Empty without packages.
            enter: words in front of the other stages' commands, which set the variables.
            after_hook: a command between the hook and the trial. Its exit code is ignored.
        """
        trial = [python, "-m", "detcloud.launch.trial"]
        stages = [("packages", list(install))] if install else []
        if self.has_hook:
            hook = hook_command(self.directory.code, records, trial, after_hook)
            stages.append(("hook", [*enter, *hook]))
        return [*stages, ("trial", [*enter, *trial])]

    def environment(
        self, base: Mapping[str, str], reserved: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return all environment variables of the trial.

        Later sources override earlier sources: Determined's variables, the trial's share of a slot,
        `base`, `storage` without variables that the user replaces, the user's variables, the
        variables of the gang, `reserved`. Reserved names in the user's variables are ignored.
        `base` must contain PYTHONPATH if the user sets PYTHONPATH.
        """
        storage = without_user_variables(self.storage, self.variables, device=self.device)
        own = {**determined_variables(self.spec), **share_variables(self.spec)}
        base = {**own, **base, **storage}
        reserved = {**gang_variables(self.spec), **(reserved or {})}
        return trial_environment(base, self.variables, self.directory, self.slots, reserved)
