"""Reads the cluster configuration, the file of a stack's setting `clusterConfig`."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from control_plane.config.eras import Tree
from control_plane.config.pools import (
    ClusterConfig,
    Completion,
    check_cluster,
    complete_cluster,
)
from control_plane.config.problems import ConfigInvalid
from infra.stack_program import PROJECT, SettingsInvalid

T = TypeVar("T")


def read_cluster_config(path: Path, complete: Completion = lambda tree: tree) -> str:
    """Return the text of a valid cluster configuration, with the values that `complete` adds.

    The text names the types of pools that name none. Otherwise an unchanged file would leave the
    pools with the default types of an older version. Raise SettingsInvalid if the file cannot be
    read, is not UTF-8 or is invalid.
    """

    def read(text: str) -> str:
        cluster = check_cluster(text, complete)
        return complete_cluster(text, lambda tree: _name_default_types(complete(tree), cluster))

    return parse_cluster_config(path, read)


def _name_default_types(tree: Tree, cluster: ClusterConfig) -> Tree:
    """Return a copy of the configuration `tree` with types in all pools of clouds.

    `cluster` is the same configuration, checked. Return `tree` itself if all pools name types.
    """
    fields = [
        pool.provider.default_type_fields() if pool.provider else {}
        for pool in cluster.resource_pools
    ]
    if not any(fields):
        return tree
    pools = [
        {**pool, "provider": {**pool["provider"], **types}} if types else pool
        for pool, types in zip(tree["resource_pools"], fields, strict=True)
    ]
    return {**tree, "resource_pools": pools}


def parse_cluster_config(path: Path, parse: Callable[[str], T]) -> T:
    """Return the result of `parse` for the text of the file.

    Raise SettingsInvalid if the file cannot be read or is not UTF-8, or if `parse` raises
    ConfigInvalid. Other errors of `parse` are passed on.
    """
    place = f"{PROJECT}:clusterConfig: {path}"
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsInvalid([f"{place} cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise SettingsInvalid([f"{place} is not UTF-8 text"]) from None
    except ConfigInvalid as error:
        lines = [problem.text(str(path)) for problem in error.problems]
        raise SettingsInvalid(lines) from None
