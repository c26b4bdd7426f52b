"""A trial that the cluster has assigned to this node, as the runtimes take it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.environment import (
    gang_variables,
    trial_environment,
    without_user_variables,
)
from detcloud.agent.assignment.startup_hook import HOOK_FILE, hook_command
from detcloud.compatibility.variables import determined_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from detcloud.agent.allocation.directory import AllocationDirectory
    from detcloud.agent.slots import Slot


class LaunchImpossible(Exception):
    """The trial's own request cannot be met: the message says what, why and what to do."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A trial to be run: its directory with the model code in it, its spec and its slots.

    `variables` and `registry_auth` are the configuration's, with their secrets; `storage` are the
    variables by which the trial gets keys and the region; `issue_login` fetches a login for a pull
    of an image, as `TrialGrants.fetch_login` does, where the cluster gives such.
    """

    directory: AllocationDirectory
    spec: Mapping[str, Any]
    slots: Sequence[Slot]
    threads: int
    log_bytes_max: int
    variables: object = field(default=None, repr=False)
    registry_auth: object = field(default=None, repr=False)
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    issue_login: Callable[[str], Mapping[str, str] | None] | None = None

    @property
    def config(self) -> Mapping[str, Any]:
        """The experiment's configuration, without secrets."""
        config = self.spec.get("config")
        return config if isinstance(config, dict) else {}

    @property
    def uses_cuda(self) -> bool:
        """Whether the trial runs on GPUs."""
        return any(slot.type == "cuda" for slot in self.slots)

    @property
    def has_hook(self) -> bool:
        """Whether the model code has a startup hook."""
        return (self.directory.code / HOOK_FILE).is_file()

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the configuration."""
        section = self.config.get(name)
        return section if isinstance(section, dict) else {}

    def stages(self, python: str, records: Path) -> list[tuple[str, list[str]]]:
        """The stages to run in turn; the hook marks its end with a file in `records`."""
        trial = [python, "-m", "detcloud.launch.trial"]
        if not self.has_hook:
            return [("trial", trial)]
        return [("hook", hook_command(self.directory.code, records, trial)), ("trial", trial)]

    def environment(
        self, base: Mapping[str, str], reserved: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """The trial's variables, over those in `base` and below those of the runtime's own."""
        storage = without_user_variables(self.storage, self.variables, cuda=self.uses_cuda)
        base = {**determined_variables(self.spec), **base, **storage}
        reserved = {**gang_variables(self.spec), **(reserved or {})}
        return trial_environment(base, self.variables, self.directory, self.slots, reserved)
