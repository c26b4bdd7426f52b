"""Checks of a stack's configuration that the programs of all clouds make alike."""

from collections.abc import Callable
from pathlib import Path

from control_plane.config.pool_settings import task_defaults
from control_plane.config.pools import ClusterConfig
from control_plane.config.providers import Provider
from infra.sources import REPOSITORY
from infra.stack_program import PROJECT, SettingsInvalid


def find_pools_without_image(
    cluster: ClusterConfig, lacks_image: Callable[[Provider], bool]
) -> list[str]:
    """Return the pools whose instances would look for images that are built where they are used:
    `lacks_image` says of a provider of the stack's cloud whether it names no machine image.
    """
    return [
        pool.pool_name
        for pool in cluster.resource_pools
        if pool.provider is not None
        and lacks_image(pool.provider)
        and "image" not in task_defaults(pool, cluster).get("environment", {})
    ]


def find_archive(setting: str, path: str | None, name: str, command: str) -> str:
    """Return the archive at `path`, or the one called `name` that was built here, which `command`
    does. Raises SettingsInvalid where there is none.
    """
    archive = Path(path or REPOSITORY / "dist" / name)
    if not archive.is_file():
        remedy = f"`{command}` makes one"
        raise SettingsInvalid([f"{PROJECT}:{setting}: there is no file {archive}; {remedy}"])
    return str(archive)
