"""Reading and checking the configuration of a stack, as the programs of all clouds do it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pulumi
from pulumi.runtime import config

from control_plane.config.images import DEFAULT_IMAGES
from control_plane.config.pool_settings import task_defaults
from control_plane.config.pools import ClusterConfig, check_cluster
from control_plane.config.providers import Provider
from infra.sources import REPOSITORY
from infra.stack_program import PROJECT, SettingsInvalid

T = TypeVar("T")


def read_present_stack(read: Callable[[str, Mapping[str, object]], T]) -> T:
    """Return what `read` makes of the name and the configuration of Pulumi's present stack.

    Raises:
        RunError: the configuration is wrong, which Pulumi tells without a traceback.
    """
    # pulumi.Config does not tell which names there are: a misspelt one would be no mistake.
    stack_config = {**config.get_config_env(), **config.CONFIG.get()}
    try:
        return read(pulumi.get_stack(), stack_config)
    except SettingsInvalid as error:
        raise pulumi.RunError(str(error)) from None


def setting_texts(stack_config: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of a stack's configuration by their names, without other projects'."""
    prefix = f"{PROJECT}:"
    return {
        name.removeprefix(prefix): str(item)
        for name, item in stack_config.items()
        if name.startswith(prefix)
    }


def check_pools(text: str, find_problems: Callable[[ClusterConfig], list[str]]) -> ClusterConfig:
    """Return the cluster configuration, in whose pools a cloud finds no problems. Raises
    SettingsInvalid.
    """
    cluster = check_cluster(text)
    if problems := find_problems(cluster):
        raise SettingsInvalid(problems)
    return cluster


def find_missing_images(
    place: str,
    cluster: ClusterConfig,
    lacks_image: Callable[[Provider], bool],
    field: str,
    page: str,
) -> tuple[str, ...]:
    """Return a warning if instances of pools would look for images that are built where they are
    used, `place` being the configuration's file: `lacks_image` says of a provider of the stack's
    cloud whether its `field` names no machine image. `page` of the documents says what to do.
    """
    pools = [
        pool.pool_name
        for pool in cluster.resource_pools
        if pool.provider is not None
        and lacks_image(pool.provider)
        and "image" not in task_defaults(pool, cluster).get("environment", {})
    ]
    if not pools:
        return ()
    return (
        f"{place}: pools {', '.join(pools)}: neither provider.{field} nor "
        f"task_container_defaults.image is set, so trials run in {DEFAULT_IMAGES.cpu} or "
        f"{DEFAULT_IMAGES.cuda}, which are in no registry; {page} describes how to build "
        "one, under The image of trials",
    )


def find_archive(setting: str, path: str | None, name: str, command: str) -> str:
    """Return the archive at `path`, or the one called `name` that was built here, which `command`
    does. Raises SettingsInvalid where there is none.
    """
    archive = Path(path or REPOSITORY / "dist" / name)
    if not archive.is_file():
        remedy = f"`{command}` makes one"
        raise SettingsInvalid([f"{PROJECT}:{setting}: there is no file {archive}; {remedy}"])
    return str(archive)
