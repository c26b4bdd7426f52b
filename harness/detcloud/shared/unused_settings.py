"""The settings of an experiment that are accepted but have no effect on any agent.

The answer to a submission and the log of each run have a notice for each such setting.
agent/assignment/unused_settings.py handles settings that only some agents honour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

NETWORK = "containers use the machine's own network"
NO_CAPABILITIES = "the user of a trial has none"
NO_MANAGER = "agents take trials from this cluster, not from a workload manager"
NO_FUSION = "PyTorch itself exchanges gradients"
EVENT_FILES = "event files lie beside the checkpoints"
WHOLE_RUN = "the machine is measured over the whole run"
OPEN_PORTS = "environment.proxy_ports.unauthenticated"
OF_THE_MASTER = "Determined's master read it, and there is none"


class UnusedSetting(NamedTuple):
    """A setting without an effect."""

    path: tuple[str, ...]
    """The names of the sections and of the setting."""
    reason: str
    """The reason why the setting has no effect, for users."""
    neutral: tuple[object, ...] = ()
    """The values that need no notice, such as defaults. Empty for all empty or false values."""
    storage: str = ""
    """The type of checkpoint storage for which a notice is given. "" for any type."""
    switch: str = ""
    """The setting of the same section that must be on for a notice. "" for no condition."""


UNUSED_SETTINGS = (
    UnusedSetting(("environment", "ports"), NETWORK),
    UnusedSetting(("environment", "pod_spec"), "agents run containers, no pods"),
    UnusedSetting(("environment", "add_capabilities"), NO_CAPABILITIES),
    UnusedSetting(("environment", "drop_capabilities"), NO_CAPABILITIES),
    UnusedSetting(("environment", "slurm"), NO_MANAGER),
    UnusedSetting(("environment", "pbs"), NO_MANAGER),
    UnusedSetting(
        ("searcher", "train_stragglers"),
        "what a rung leaves behind is closed, as Determined did",
        (True,),
    ),
    UnusedSetting(("resources", "native_parallel"), "only Determined's native API had it"),
    UnusedSetting(("resources", "slots"), "slots_per_trial says how many slots a trial has"),
    UnusedSetting(("slurm",), NO_MANAGER),
    UnusedSetting(("pbs",), NO_MANAGER),
    UnusedSetting(("optimizations", "grad_updates_size_file"), NO_FUSION),
    UnusedSetting(("optimizations", "tensor_fusion_cycle_time"), NO_FUSION, (1, 5)),
    UnusedSetting(("optimizations", "auto_tune_tensor_fusion"), NO_FUSION),
    UnusedSetting(
        ("optimizations", "mixed_precision"),
        "O2 and O3 are apex's own levels, so PyTorch's mixed precision runs, as for O1",
        ("O0", "O1"),
    ),
    UnusedSetting(("profiling", "begin_on_batch"), WHOLE_RUN, switch="enabled"),
    UnusedSetting(("profiling", "end_after_batch"), WHOLE_RUN, switch="enabled"),
    UnusedSetting(("profiling", "sync_timings"), WHOLE_RUN, (True, False), switch="enabled"),
    UnusedSetting(("tensorboard_storage",), EVENT_FILES),
    UnusedSetting(("security",), OF_THE_MASTER),
    UnusedSetting(("internal",), OF_THE_MASTER),
    UnusedSetting(("debug",), "logs have the level that the code sets"),
    UnusedSetting(
        ("checkpoint_storage", "container_path"),
        "trials find the directory by host_path and storage_path",
        storage="shared_fs",
    ),
    UnusedSetting(
        ("checkpoint_storage", "checkpoint_path"),
        "storage_path says where checkpoints lie",
        storage="shared_fs",
    ),
    UnusedSetting(("checkpoint_storage", "tensorboard_path"), EVENT_FILES, storage="shared_fs"),
)


def unused_setting_notices(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each configured setting without an effect.

    `config` is the configuration as JSON values. Settings with default values are skipped. A
    section that is no mapping counts as missing.
    """
    storage = config.get("checkpoint_storage")
    storage_type = storage.get("type") if isinstance(storage, Mapping) else None
    for setting in UNUSED_SETTINGS:
        if setting.storage not in ("", storage_type):
            continue
        if asks_for_something(config, setting.path, setting.neutral, setting.switch):
            yield f"{'.'.join(setting.path)} is not used: {setting.reason}"
    integrations = config.get("integrations")
    for name in integrations if isinstance(integrations, Mapping) else ():
        if name not in ("webhooks", "webhook", "github"):
            yield f"integrations.{name} is not used: the cluster has only webhooks and github"
    environment = config.get("environment")
    if isinstance(environment, Mapping) and _has_open_port(environment.get("proxy_ports")):
        yield f"{OPEN_PORTS} is not used: only the owner of a trial and admins open tunnels"


def _has_open_port(entries: object) -> bool:
    """Whether an entry of `proxy_ports` accepts unauthenticated connections."""
    return any(
        isinstance(entry, Mapping) and entry.get("unauthenticated")
        for entry in _list_entries(entries)
    )


def _list_entries(entries: object) -> Sequence[object]:
    return entries if isinstance(entries, Sequence) else ()


def asks_for_something(
    config: Mapping[str, Any], path: tuple[str, ...], neutral: tuple[object, ...], switch: str = ""
) -> bool:
    """Whether a configuration has a value at the path that is not one of the `neutral` values.

    Without neutral values, empty and false values are neutral, also None and 0. With neutral
    values, None and empty values count like any other. Values are compared by `==`, so that 1
    equals True. False if the path does not exist, or if `switch` names a setting beside the last
    name of the path that is false, empty or missing.
    """
    value: Any = config
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False
        if name == path[-1] and switch and not value.get(switch):
            return False
        value = value[name]
    return value not in neutral if neutral else bool(value)
