"""The program of a team's stack: its settings and its cluster configuration in, the stack out."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pulumi
import pulumi_gcp as gcp

from control_plane.config.eras import Tree
from control_plane.config.pools import complete_cluster
from control_plane.config.providers import Provider
from control_plane.gcp.pool_provider import GcpProvider
from infra.cluster_config_file import parse_cluster_config, read_cluster_config
from infra.findings import Finding
from infra.gcp import bundle, deployer, draining
from infra.gcp.account_checks import check_facts
from infra.gcp.account_reader import read_project
from infra.gcp.deliveries import extend_deliveries
from infra.gcp.described_types import (
    NamedType,
    add_described_types,
    find_named_types,
    read_described_types,
)
from infra.gcp.google_api import UNAUTHORIZED, GoogleError, RestApi
from infra.gcp.image import ImageBuilder, build_image
from infra.gcp.machine_catalog import GoogleCatalog
from infra.gcp.pool_checks import find_pool_problems
from infra.gcp.pruning import prune_revisions
from infra.gcp.rollback import move_functions
from infra.gcp.settings import Settings, launcher_of, parse_settings
from infra.gcp.stack import TeamStack
from infra.gcp.terraform import PROVIDER
from infra.program_checks import (
    check_pools,
    find_archive,
    find_missing_images,
    read_present_stack,
    setting_texts,
)
from infra.remote_commands import RemoteCommands
from infra.remote_settings import check_remote_accounts, drain_remote_accounts
from infra.stack_program import (
    PROJECT,
    ConfigReport,
    DrainReport,
    FunctionArchives,
    FunctionMove,
    Progress,
    SettingsInvalid,
    StackProgram,
)

# By the setting that names an archive, the kind of it.
ARCHIVE_KINDS: Final = {"archive": "functions", "suggestArchive": "suggest"}
# That of Cloud Run, which has no other.
ARCHITECTURE: Final = "x86_64"
_NO_IMAGE: Final = (
    f"{PROJECT}:image is missing: Terraform builds none; `gcloud builds submit` builds one of each "
    "archive that `python -m infra.gcp.bundle` makes, as docs/gcp.md says"
)


def run() -> None:
    """Make the stack that Pulumi's present one is named after.

    Raises:
        RunError: the configuration is wrong, which Pulumi tells without a traceback.
    """
    make_stack(build_image)


def run_export() -> None:
    """Make the stack for Terraform, which builds no images. Raises RunError."""
    make_stack(None)


def make_stack(builder: ImageBuilder | None) -> None:
    """Make the stack, with images of the functions that `builder` builds where none are named.
    Raises RunError.
    """
    settings, text = read_present_stack(read_stack_config)
    if builder is None and not settings.image:
        raise pulumi.RunError(_NO_IMAGE)
    # Every resource names its project, so that no other project's credentials choose it.
    # Calls with credentials of people count against it as well: the interface of budgets takes no
    # others.
    provider = gcp.Provider(
        "gcp",
        project=settings.project,
        region=settings.region,
        billing_project=settings.project,
        user_project_override=True,
    )
    stack = TeamStack(settings, text, builder, pulumi.ResourceOptions(providers=[provider]))
    for name, value in stack.outputs.items():
        pulumi.export(name, value)


def read_stack_config(team: str, stack_config: Mapping[str, object]) -> tuple[Settings, str]:
    """Return the team's settings of a stack's configuration, and the cluster configuration that
    they name.

    Raises:
        SettingsInvalid: they are wrong, or what they name is not there or wrong.
    """
    settings = _read_settings(team, stack_config)
    text = _read_cluster(settings)
    if settings.image:
        return settings, text
    archives = {
        "archive": _archive_path("archive", settings.archive),
        "suggest_archive": _archive_path("suggestArchive", settings.suggest_archive),
    }
    return settings.model_copy(update=archives), text


def check_stack_config(team: str, stack_config: Mapping[str, object]) -> ConfigReport:
    """Check the configuration of a team's stack. Raises SettingsInvalid."""
    settings, text = read_stack_config(team, stack_config)
    cluster = check_pools(text, partial(find_pool_problems, settings))
    place, field = settings.cluster_config, "boot_disk_source_image"
    warnings = find_missing_images(place, cluster, _lacks_image, field, "docs/gcp.md")
    return ConfigReport(ARCHITECTURE, warnings, needs_archives=not settings.image)


def check_account(team: str, stack_config: Mapping[str, object]) -> list[Finding]:
    """Check whether a team's stack can run in its project. Raises SettingsInvalid."""
    settings = _read_settings(team, stack_config)
    cluster = check_pools(_read_cluster(settings), partial(find_pool_problems, settings))
    api, catalog = RestApi(settings.project), GoogleCatalog(settings.project)
    facts = read_project(settings, cluster, api, catalog)
    return [
        *check_facts(settings, cluster, facts),
        *check_remote_accounts(settings.remote_accounts, cluster),
    ]


def complete_stack_config(team: str, stack_config: dict[str, str]) -> list[str]:
    """Describe the machine types of the pools, unless the settings do, as Compute Engine does.
    Raises SettingsInvalid for types that nobody knows and the pools' regions have not.
    """
    settings, setting = _read_settings(team, stack_config), f"{PROJECT}:machineTypes"
    path = Path(settings.cluster_config)
    named: list[NamedType] = []

    def find_names(tree: Tree) -> Tree:
        named.extend(find_named_types(tree, settings.region))
        return tree

    parse_cluster_config(path, lambda text: complete_cluster(text, find_names))
    if setting in stack_config or not named:
        return []
    try:
        described, problems = read_described_types(named, GoogleCatalog(settings.project))
    except GoogleError as error:
        # That nothing can be deployed without credentials the check says, if it gets so far.
        is_told = error.status == UNAUTHORIZED and not any(
            named_type.needs_facts for named_type in named
        )
        text = f"Compute Engine does not describe the pools' machine types: {error}"
        return [] if is_told else [text]
    if problems:
        raise SettingsInvalid([f"{path}: {problem}" for problem in problems])
    stack_config[setting] = json.dumps(
        {name: described[name].model_dump() for name in sorted(described)}
    )
    return []


def deployer_policy(team: str, stack_config: Mapping[str, object], of_key: bool) -> str:
    """Return the role of the deployer, or the binding that `kmsKey` needs. Raises
    SettingsInvalid.
    """
    settings = _read_settings(team, stack_config)
    return deployer.render_key_binding(settings) if of_key else deployer.render_role()


def drain(team: str, stack_config: Mapping[str, object], progress: Progress) -> DrainReport:
    """End the instances of a team's cluster. Raises DrainFailed, SettingsInvalid."""
    settings = _read_settings(team, stack_config)
    report = draining.drain(settings.names, RestApi(settings.project), progress)
    return drain_remote_accounts(settings.remote_accounts, report, progress)


def finish(team: str, stack_config: Mapping[str, object], progress: Progress) -> None:
    """Do to a team's stack what none of its resources does: undo what `drain` did to the functions,
    and give deliveries their time. Raises DrainFailed, SettingsInvalid.
    """
    names = _read_settings(team, stack_config).names
    api = RestApi(names.project)
    draining.start_tick(names, api, progress)
    extend_deliveries(names, api, progress)


def find_leftovers(team: str, stack_config: Mapping[str, object]) -> list[str]:
    """Return what Google still has of a cluster. Raises SettingsInvalid."""
    try:
        names = _read_settings(team, stack_config).names
        return draining.find_leftovers(names, RestApi(names.project))
    except GoogleError as error:
        return [f"Google did not return the remaining resources: {error}"]


def rollback(
    team: str, stack_config: Mapping[str, object], forward: bool, progress: Progress
) -> list[FunctionMove]:
    """Move the functions to the deployment before. Raises RollbackFailed, SettingsInvalid."""
    names = _read_settings(team, stack_config).names
    return move_functions(names, RestApi(names.project), progress, forward=forward)


def prune(team: str, stack_config: Mapping[str, object], progress: Progress) -> int:
    """Remove revisions that no rollback needs. Raises PruneFailed, SettingsInvalid."""
    names = _read_settings(team, stack_config).names
    return prune_revisions(names, RestApi(names.project), progress)


def _read_settings(team: str, stack_config: Mapping[str, object]) -> Settings:
    return parse_settings(team, setting_texts(stack_config))


def _read_cluster(settings: Settings) -> str:
    """Return the cluster configuration, with what the settings say of its machine types."""
    complete = partial(add_described_types, described=settings.machine_types)
    return read_cluster_config(Path(settings.cluster_config), complete)


def _lacks_image(provider: Provider) -> bool:
    return isinstance(provider, GcpProvider) and not provider.boot_disk_source_image


def _archive_path(setting: str, path: str | None) -> str:
    name = bundle.archive_name(ARCHIVE_KINDS[setting])
    return find_archive(setting, path, name, "python -m infra.gcp.bundle")


def _archive_name(kind: str, architecture: str) -> str:
    return bundle.archive_name(kind)


def _build_archive(kind: str, architecture: str, folder: Path) -> Path:
    return bundle.build_archive(folder, kind)


ARCHIVES: Final = FunctionArchives(ARCHIVE_KINDS, _archive_name, _build_archive)
STORES: Final = frozenset({"gcp:firestore/database:Database", "gcp:storage/bucket:Bucket"})
REMOTE_COMMANDS: Final = RemoteCommands("gcp", _read_settings, launcher_of)
PROGRAM: Final = StackProgram(
    run=run,
    check_config=check_stack_config,
    check_account=check_account,
    deployer_policy=deployer_policy,
    drain=drain,
    find_leftovers=find_leftovers,
    rollback=rollback,
    prune=prune,
    stores=STORES,
    archives=ARCHIVES,
    terraform=PROVIDER,
    run_export=run_export,
    complete_config=complete_stack_config,
    finish=finish,
    trust_commands=REMOTE_COMMANDS.trust_commands,
    find_remote_leftovers=REMOTE_COMMANDS.find_remote_leftovers,
    find_dropped_accounts=REMOTE_COMMANDS.find_dropped_accounts,
)
