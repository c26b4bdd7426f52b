"""The program of a stack: its settings and its cluster configuration in, the stack out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pulumi
import pulumi_aws as aws
from pulumi.runtime import config

from control_plane.config import ConfigInvalid
from control_plane.config.pools import check_cluster
from infra.aws.settings import Settings, SettingsInvalid, read
from infra.aws.stack import TeamStack
from infra.bundle import REPOSITORY, archive_name

PROJECT = "detcloud"


def run() -> None:
    """Makes the stack that Pulumi's present one is named after.

    Raises:
        RunError: something that was given is wrong, which Pulumi tells without a traceback.
    """
    # pulumi.Config does not tell which names there are: a misspelt one would be no mistake.
    given = {**config.get_config_env(), **config.CONFIG.get()}
    try:
        settings, text = checked(pulumi.get_stack(), given)
    except SettingsInvalid as error:
        raise pulumi.RunError(str(error)) from None
    # Another account's credentials would make a second cluster of the same name there.
    provider = aws.Provider("aws", region=settings.region, allowed_account_ids=[settings.account])
    stack = TeamStack(settings, text, pulumi.ResourceOptions(providers=[provider]))
    for name, value in stack.outputs.items():
        pulumi.export(name, value)


def checked(team: str, given: Mapping[str, object]) -> tuple[Settings, str]:
    """The team's settings of a stack's configuration, and the cluster configuration they name.

    Raises:
        SettingsInvalid: they are wrong, or what they name is not there or wrong.
    """
    prefix = f"{PROJECT}:"
    own = {name.removeprefix(prefix): str(it) for name, it in given.items() if prefix in name}
    settings = read(team, own)
    text = _configuration(Path(settings.cluster_config))
    functions = _archive(settings, "functions", "archive", settings.archive)
    suggest = _archive(settings, "suggest", "suggestArchive", settings.suggest_archive)
    return replace(settings, archive=functions, suggest_archive=suggest), text


def _archive(settings: Settings, kind: str, setting: str, named: str) -> str:
    """The archive that is `named`, or that of the kind which was built here."""
    architecture = settings.architecture
    archive = Path(named or REPOSITORY / "dist" / archive_name(kind, architecture))
    if not archive.is_file():
        made = f"`python -m infra.bundle {architecture}` makes one"
        raise SettingsInvalid([f"{PROJECT}:{setting}: there is no file {archive}; {made}"])
    return str(archive)


def _configuration(path: Path) -> str:
    place = f"detcloud:clusterConfig: {path}"
    try:
        text = path.read_text(encoding="utf-8")
        check_cluster(text)
    except OSError as error:
        raise SettingsInvalid([f"{place} cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise SettingsInvalid([f"{place} is no text in UTF-8"]) from None
    except ConfigInvalid as error:
        lines = [problem.text(str(path)) for problem in error.problems]
        raise SettingsInvalid(lines) from None
    return text
