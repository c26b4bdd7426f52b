"""The file of a stack's setting `clusterConfig`."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from control_plane.config.pools import Completion, check_cluster, complete_cluster
from control_plane.config.problems import ConfigInvalid
from infra.stack_program import PROJECT, SettingsInvalid

T = TypeVar("T")


def read_cluster_config(path: Path, complete: Completion = lambda tree: tree) -> str:
    """Return the text of a cluster configuration that is right, with what `complete` adds to it.
    Raises SettingsInvalid.
    """

    def read(text: str) -> str:
        check_cluster(text, complete)
        return complete_cluster(text, complete)

    return parse_cluster_config(path, read)


def parse_cluster_config(path: Path, parse: Callable[[str], T]) -> T:
    """Return what `parse` makes of the text of a cluster configuration, which raises ConfigInvalid
    for a wrong one. Raises SettingsInvalid.
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
