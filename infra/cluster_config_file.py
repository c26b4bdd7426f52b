"""The file of a stack's setting `clusterConfig`."""

from pathlib import Path

from control_plane.config.pools import check_cluster
from control_plane.config.problems import ConfigInvalid
from infra.stack_program import PROJECT, SettingsInvalid


def read_cluster_config(path: Path) -> str:
    """Return the text of a cluster configuration that is right. Raises SettingsInvalid."""
    place = f"{PROJECT}:clusterConfig: {path}"
    try:
        text = path.read_text(encoding="utf-8")
        check_cluster(text)
    except OSError as error:
        raise SettingsInvalid([f"{place} cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise SettingsInvalid([f"{place} is not UTF-8 text"]) from None
    except ConfigInvalid as error:
        lines = [problem.text(str(path)) for problem in error.problems]
        raise SettingsInvalid(lines) from None
    return text
