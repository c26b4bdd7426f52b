"""The program of a team's stack on Google Cloud, and the commands for that stack."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import pulumi
import pulumi_gcp as gcp

from control_plane.config.eras import Tree
from control_plane.config.pools import Completion, complete_cluster
from infra.cluster_config_file import parse_cluster_config, read_cluster_config
from infra.findings import Finding, Unknown
from infra.gcp import bundle, deployer, draining, state_restore, stores
from infra.gcp.account_checks import check_facts
from infra.gcp.account_reader import read_project
from infra.gcp.copies import create_transfer_agent
from infra.gcp.copy_checks import check_copies
from infra.gcp.deliveries import extend_deliveries
from infra.gcp.described_types import (
    NamedType,
    add_described_types,
    find_named_types,
    read_described_types,
)
from infra.gcp.google_api import UNAUTHORIZED, GoogleApi, GoogleError, RestApi
from infra.gcp.image import ImageBuilder, build_image
from infra.gcp.machine_catalog import GoogleCatalog
from infra.gcp.pool_checks import find_pool_problems
from infra.gcp.pruning import prune_revisions
from infra.gcp.rollback import move_functions
from infra.gcp.settings import Settings, launcher_of, parse_settings
from infra.gcp.stack import TeamStack
from infra.gcp.terraform import PROVIDER
from infra.gcp.verification import GcpVerifier
from infra.image_checks import check_images
from infra.machine_network import add_machine_network
from infra.program_checks import (
    check_pools,
    find_archive,
    find_default_types,
    read_present_stack,
    setting_texts,
)
from infra.remote_commands import RemoteCommands
from infra.remote_settings import check_remote_accounts, drain_remote_accounts
from infra.restoration import ObjectsReport, RestoreReport, RestoreRequest
from infra.stack_program import (
    PROJECT,
    ConfigReport,
    DrainReport,
    FunctionArchives,
    FunctionMove,
    Progress,
    SettingsInvalid,
    StackProgram,
    Store,
)

# The kind of archive that each setting names.
ARCHIVE_KINDS: Final = {"archive": "functions", "suggestArchive": "suggest"}
# Cloud Run supports only this processor.
ARCHITECTURE: Final = "x86_64"
_NO_COPIES: Final = (
    f"{PROJECT}:copies cannot be exported: a deployment creates the agent of the transfers; leave "
    "out the setting and declare the copies in a file beside the export, as docs/recovery.md says"
)
_NO_IMAGE: Final = (
    f"{PROJECT}:image is missing: Terraform builds none; `gcloud builds submit` builds one of each "
    "archive that `python -m infra.gcp.bundle` makes, as docs/gcp.md says"
)


def run() -> None:
    """Declare the resources and outputs of the team that Pulumi's selected stack is named after.

    During a deployment, Cloud Build builds the images that the settings do not name.

    Raises:
        RunError: the configuration is invalid. Pulumi shows this error without a traceback.
    """
    make_stack(build_image, create_transfer_agent)


def run_export() -> None:
    """Declare the stack for an export to Terraform, which builds no images.

    Raise RunError if the configuration is invalid, names no image or asks for copies in another
    region.
    """
    settings, _ = read_present_stack(read_stack_config)
    if settings.copies is not None:
        raise pulumi.RunError(_NO_COPIES)
    make_stack(None)


def make_stack(
    builder: ImageBuilder | None, create_agent: Callable[[str, GoogleApi], None] | None = None
) -> None:
    """Declare the resources and outputs of the team's stack.

    Raise RunError if the configuration is invalid, if neither `builder` nor an image is given, or
    if Google refuses to create the transfer agent.

    Args:
        builder: builds the functions' images, if the settings name none; None builds no images.
        create_agent: creates the transfer agent of the project, if the settings ask for copies.
    """
    settings, text = read_present_stack(read_stack_config)
    if settings.copies is not None and create_agent is not None:
        try:
            create_agent(settings.project, RestApi(settings.project))
        except GoogleError as error:
            raise pulumi.RunError(
                f"{PROJECT}:copies needs the agent of Storage Transfer Service, which Google did "
                f"not create: {error}; enable storagetransfer.googleapis.com"
            ) from None
    if builder is None and not settings.image:
        raise pulumi.RunError(_NO_IMAGE)
    # Every resource names the project explicitly, so that credentials cannot select another.
    # Calls with a person's credentials count against the project, as the budgets' API requires.
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
    """Return the team's settings, with archive paths filled in, and the cluster configuration.

    The configuration is a text with the descriptions of machine types. With the setting `image`,
    archive paths stay as they are. `stack_config` maps names like `detcloud:region` to values.

    Raises:
        SettingsInvalid: the settings are invalid, or the cluster configuration or an archive is
            missing or invalid.
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
    """Check a stack's configuration without calling Google; return a report with warnings.

    The warnings are about pools without an instance type. Raise SettingsInvalid if the settings,
    the cluster configuration or a pool is invalid, or an archive is missing.
    """
    settings, text = read_stack_config(team, stack_config)
    check_pools(text, partial(find_pool_problems, settings))
    warnings = find_default_types(settings.cluster_config, _completion(settings))
    return ConfigReport(ARCHITECTURE, warnings, needs_archives=not settings.image)


def check_account(team: str, stack_config: Mapping[str, object]) -> list[Finding]:
    """Return findings on whether a team's stack can run in the project and remote accounts.

    Google and the clouds of remote accounts are called with the deployer's credentials. Registries
    are asked for the images of trials. A failed call becomes a warning, and refused credentials an
    error. Raise SettingsInvalid if the settings, the cluster configuration or a pool is invalid.
    """
    settings = _read_settings(team, stack_config)
    cluster = check_pools(_read_cluster(settings), partial(find_pool_problems, settings))
    api, catalog = RestApi(settings.project), GoogleCatalog(settings.project)
    facts = read_project(settings, cluster, api, catalog)
    return [
        *check_facts(settings, cluster, facts),
        *check_copies(settings, api),
        *check_remote_accounts(settings.remote_accounts, cluster),
        *check_images(cluster),
    ]


def complete_stack_config(team: str, stack_config: dict[str, str]) -> list[str]:
    """Add Compute Engine's descriptions of the pools' machine types to `stack_config`.

    Change nothing if `machineTypes` is set or no pool runs on Google Cloud. Return a warning if
    Compute Engine does not answer. Missing credentials are a warning only if a type needs a
    description. Raise SettingsInvalid if the settings or the cluster configuration are invalid, or
    if a pool's region lacks a type that needs a description.
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
        # The check of the account reports missing credentials, but the configuration's check fails
        # earlier if a type needs a description.
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
    """Return the deployer's role as YAML.

    With `of_key`, return instead, as YAML, the IAM binding that the key of the setting `kmsKey`
    needs. The binding does not name the key, so the setting need not be set. Google is not called.
    Raise SettingsInvalid if the settings are invalid.
    """
    settings = _read_settings(team, stack_config)
    return deployer.render_key_binding(settings) if of_key else deployer.render_role()


def drain(team: str, stack_config: Mapping[str, object], progress: Progress) -> DrainReport:
    """Stop the tick and terminate the team's instances, then drain the remote accounts.

    Return the sum of all. Raise SettingsInvalid, and DrainFailed if the database is protected,
    instances do not end or Google refuses.
    """
    settings = _read_settings(team, stack_config)
    report = draining.drain(settings.names, RestApi(settings.project), progress)
    return drain_remote_accounts(settings.remote_accounts, report, progress)


def finish(team: str, stack_config: Mapping[str, object], progress: Progress) -> None:
    """Complete a deployment: restart a tick that `drain` stopped, and extend delivery deadlines.

    Raise DrainFailed if the tick cannot be restarted, and SettingsInvalid. Report refused deadlines
    as warnings.
    """
    names = _read_settings(team, stack_config).names
    api = RestApi(names.project)
    draining.start_tick(names, api, progress)
    extend_deliveries(names, api, progress)


def find_leftovers(team: str, stack_config: Mapping[str, object]) -> list[str]:
    """Return a line for each remaining resource of the cluster in the stack's project.

    If Google refuses, return one line that says so. Raise SettingsInvalid.
    """
    try:
        names = _read_settings(team, stack_config).names
        return draining.find_leftovers(names, RestApi(names.project))
    except GoogleError as error:
        return [f"Google did not return the remaining resources: {error}"]


def rollback(
    team: str, stack_config: Mapping[str, object], forward: bool, progress: Progress
) -> list[FunctionMove]:
    """Move the functions to the previous deployment, or to the newest with `forward`.

    Return a move for each function, also for a function that already runs the deployment.

    Raises:
        RollbackFailed: no earlier deployment exists, a function has no revision of the deployment,
            or Google refused. Only after a refusal can some functions have moved; the message names
            these functions. Call again for the rest.
        SettingsInvalid: the settings are invalid.
    """
    names = _read_settings(team, stack_config).names
    return move_functions(names, RestApi(names.project), progress, forward=forward)


def prune(team: str, stack_config: Mapping[str, object], progress: Progress) -> int:
    """Delete the revisions that no rollback needs; return the number of revisions.

    Raise PruneFailed if Google refuses or a service is missing, and SettingsInvalid.
    """
    names = _read_settings(team, stack_config).names
    return prune_revisions(names, RestApi(names.project), progress)


def open_verifier(team: str, stack_config: Mapping[str, object]) -> GcpVerifier:
    """Return the self-test's calls of Google with the deployer's credentials. Raise
    SettingsInvalid.

    Google is not called.
    """
    settings = _read_settings(team, stack_config)
    return GcpVerifier(settings.names, RestApi(settings.project))


def read_stores(team: str, stack_config: Mapping[str, object]) -> list[Store] | Unknown:
    """Read the database and the buckets from Google; return Unknown if Google refuses.

    Raise SettingsInvalid.
    """
    settings = _read_settings(team, stack_config)
    return stores.read_stores(settings.names, RestApi(settings.project))


def restore(
    team: str, stack_config: Mapping[str, object], request: RestoreRequest, progress: Progress
) -> RestoreReport:
    """Restore the state in the team's database, and start the functions again.

    Raise RestoreFailed, after which the same call continues, and SettingsInvalid.
    """
    settings = _read_settings(team, stack_config)
    return state_restore.restore(settings, RestApi(settings.project), request, progress)


def restore_lost_objects(
    team: str, stack_config: Mapping[str, object], moment: datetime | None, progress: Progress
) -> ObjectsReport:
    """Restore the lost objects of the team's buckets.

    Raise RestoreFailed, after which the same call continues, and SettingsInvalid.
    """
    settings = _read_settings(team, stack_config)
    api = RestApi(settings.project)
    return state_restore.restore_lost_objects(settings, api, moment, progress)


def restore_policy(team: str, stack_config: Mapping[str, object]) -> str:
    """Return the role, as YAML, that a restore needs besides the deployer's."""
    return deployer.render_restore_role()


def _read_settings(team: str, stack_config: Mapping[str, object]) -> Settings:
    """Return the checked settings. Raise SettingsInvalid."""
    return parse_settings(team, setting_texts(stack_config))


def _read_cluster(settings: Settings) -> str:
    """Return the cluster configuration's text with the settings' descriptions of machine types.

    Raise SettingsInvalid if the file is missing or invalid.
    """
    return read_cluster_config(Path(settings.cluster_config), _completion(settings))


def _completion(settings: Settings) -> Completion:
    """Return the function that adds the settings' machine types, proxy and authorities."""

    def complete(tree: Tree) -> Tree:
        described = add_described_types(tree, settings.machine_types)
        return add_machine_network(
            described, "gcp", settings.machine_proxy, settings.ca_certificates
        )

    return complete


def _archive_path(setting: str, path: str | None) -> str:
    """Return `path`, or if empty the path of the archive in `dist`.

    Raise SettingsInvalid, which names `setting`, if the file does not exist.
    """
    name = bundle.archive_name(ARCHIVE_KINDS[setting])
    return find_archive(setting, path, name, "python -m infra.gcp.bundle")


def _archive_name(kind: str, architecture: str) -> str:
    """Return the file name of an archive, which does not depend on the architecture."""
    return bundle.archive_name(kind)


def _build_archive(kind: str, architecture: str, folder: Path) -> Path:
    """Build the archive of a kind in `folder`, and return the archive's path.

    `kind` is `functions` or `suggest`. The architecture does not matter. Raise PackageNotFoundError
    if a required package is not installed, KeyError for another kind, and OSError if a file cannot
    be written.
    """
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
    open_verifier=open_verifier,
    stores=STORES,
    archives=ARCHIVES,
    terraform=PROVIDER,
    run_export=run_export,
    complete_config=complete_stack_config,
    finish=finish,
    read_stores=read_stores,
    restore=restore,
    restore_objects=restore_lost_objects,
    restore_policy=restore_policy,
    trust_commands=REMOTE_COMMANDS.trust_commands,
    find_remote_leftovers=REMOTE_COMMANDS.find_remote_leftovers,
    find_dropped_accounts=REMOTE_COMMANDS.find_dropped_accounts,
)
