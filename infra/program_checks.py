"""Reading and checking a stack's configuration, for the programs of all clouds."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pulumi
from pulumi.runtime import config

from control_plane.config.pool_warnings import default_type_notices
from control_plane.config.pools import ClusterConfig, Completion, check_cluster
from control_plane.config.quiet_hours import SECTION
from control_plane.usecases.quiet_hours import find_quiet_problems
from infra.cluster_config_file import parse_cluster_config
from infra.sources import REPOSITORY
from infra.stack_program import PROJECT, SettingsInvalid

T = TypeVar("T")


def read_present_stack(read: Callable[[str, Mapping[str, object]], T]) -> T:
    """Call `read` with the name and configuration of Pulumi's selected stack; return the result.

    Raises:
        RunError: `read` raised SettingsInvalid. Pulumi shows a RunError without a traceback.
    """
    # pulumi.Config does not list the names of settings, so misspelt names would go unnoticed.
    stack_config = {**config.get_config_env(), **config.CONFIG.get()}
    try:
        return read(pulumi.get_stack(), stack_config)
    except SettingsInvalid as error:
        raise pulumi.RunError(str(error)) from None


def setting_texts(stack_config: Mapping[str, object]) -> dict[str, str]:
    """Return detcloud's settings of a stack's configuration as texts, by names without prefix.

    Settings of other Pulumi projects are left out.
    """
    prefix = f"{PROJECT}:"
    return {
        name.removeprefix(prefix): str(item)
        for name, item in stack_config.items()
        if name.startswith(prefix)
    }


def check_pools(text: str, find_problems: Callable[[ClusterConfig], list[str]]) -> ClusterConfig:
    """Return the parsed cluster configuration if `find_problems` returns no problems, and the
    quiet hours of the pools are valid.

    `text` is the configuration as YAML. Otherwise raise SettingsInvalid with the problems. Raise
    ConfigInvalid if `text` is no valid cluster configuration.
    """
    cluster = check_cluster(text)
    problems = [*find_problems(cluster), *_quiet_hours_problems(cluster)]
    if problems:
        raise SettingsInvalid(problems)
    return cluster


def _quiet_hours_problems(cluster: ClusterConfig) -> list[str]:
    """Return the problems of the pools' quiet hours: unknown time zones, and hours without end."""
    now_ms = int(time.time() * 1000)
    return [
        f"resource_pools[{place}].{SECTION}{path}: {text}"
        for place, pool in enumerate(cluster.resource_pools)
        for path, text in find_quiet_problems(pool, now_ms)
    ]


def find_default_types(place: str, complete: Completion = lambda tree: tree) -> tuple[str, ...]:
    """Return a notice for each pool that names no instance type: the type, GPUs and prices.

    `place` is the configuration's file, to which `complete` adds values. Raise SettingsInvalid if
    the file cannot be read or is invalid.
    """
    cluster = parse_cluster_config(Path(place), lambda text: check_cluster(text, complete))
    return tuple(f"{place}: {notice}" for notice in default_type_notices(cluster.resource_pools))


def find_archive(setting: str, path: str | None, name: str, command: str) -> str:
    """Return `path`, or if empty the path of the archive `name` in this checkout's folder `dist`.

    Raise SettingsInvalid if the file does not exist. The message names the setting, and `command`
    as the way to build the archive.
    """
    archive = Path(path or REPOSITORY / "dist" / name)
    if not archive.is_file():
        remedy = f"`{command}` builds the archive"
        raise SettingsInvalid([f"{PROJECT}:{setting}: the file {archive} does not exist; {remedy}"])
    return str(archive)
