"""The program of a team's stack on AWS, and the commands for that stack."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import botocore.exceptions as sdk
import pulumi
import pulumi_aws as aws

from control_plane.config.pools import check_cluster
from infra.aws import bundle, deployer, draining, state_restore, stores
from infra.aws.account_checks import check_facts, default_api_concurrency
from infra.aws.account_reader import aws_clients, read_account, read_concurrency
from infra.aws.copy_checks import check_copies
from infra.aws.key_policies import log_key
from infra.aws.limits import find_limit_problems
from infra.aws.pool_checks import find_pool_problems, pool_types
from infra.aws.pruning import prune_versions
from infra.aws.restore_policy import restore_policy as make_restore_policy
from infra.aws.rollback import move_functions
from infra.aws.settings import Settings, launcher_of, parse_settings
from infra.aws.stack import TeamStack
from infra.aws.terraform import PROVIDER
from infra.aws.verification import AwsVerifier
from infra.aws.zones import default_zones
from infra.cluster_config_file import read_cluster_config
from infra.findings import Finding, Unknown
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
ARCHIVE_KINDS = {"archive": "functions", "suggestArchive": "suggest"}
_NO_COPIES = (
    f"{PROJECT}:copies cannot be exported: Terraform's provider would need a second region; leave "
    "out the setting and declare the copies in a file beside the export, as docs/recovery.md says"
)


def run() -> None:
    """Declare the resources and outputs of the team that Pulumi's selected stack is named after.

    Raises:
        RunError: the configuration is invalid. Pulumi shows this error without a traceback.
    """
    settings, text = read_present_stack(read_stack_config)
    # Credentials of another account would create a second cluster in that account.
    provider = aws.Provider("aws", region=settings.region, allowed_account_ids=[settings.account])
    stack = TeamStack(settings, text, pulumi.ResourceOptions(providers=[provider]))
    for name, value in stack.outputs.items():
        pulumi.export(name, value)


def run_export() -> None:
    """Declare the stack for an export to Terraform.

    Raise RunError if the configuration is invalid or asks for copies in another region.
    """
    settings, _ = read_present_stack(read_stack_config)
    if settings.copies is not None:
        raise pulumi.RunError(_NO_COPIES)
    run()


def read_stack_config(team: str, stack_config: Mapping[str, object]) -> tuple[Settings, str]:
    """Return the team's settings, with archive paths filled in, and the cluster configuration.

    The configuration is a text. `stack_config` maps names such as `detcloud:region` to values.

    Raises:
        SettingsInvalid: the settings are invalid or exceed AWS's limits, the cluster configuration
            is missing or invalid, or an archive does not exist. The content of archives is not
            checked.
    """
    settings = _read_settings(team, stack_config)
    text = _read_cluster(settings)
    functions = _archive_path(settings, "archive", settings.archive)
    suggest = _archive_path(settings, "suggestArchive", settings.suggest_archive)
    return replace(settings, archive=functions, suggest_archive=suggest), text


def _read_cluster(settings: Settings) -> str:
    """Return the cluster configuration's text with the settings' proxy and authorities.

    Raise SettingsInvalid if the file is missing or invalid.
    """
    complete = partial(
        add_machine_network,
        cloud="aws",
        proxy=settings.machine_proxy,
        certificates=settings.ca_certificates,
    )
    return read_cluster_config(Path(settings.cluster_config), complete)


def check_stack_config(team: str, stack_config: Mapping[str, object]) -> ConfigReport:
    """Check a stack's configuration without calling AWS; return architecture and warnings.

    The warnings are about pools without an instance type. Raise SettingsInvalid if the settings,
    the cluster configuration or a pool is invalid, or an archive is missing.
    """
    settings, text = read_stack_config(team, stack_config)
    check_pools(text, partial(find_pool_problems, settings))
    return ConfigReport(settings.architecture, find_default_types(settings.cluster_config))


def complete_stack_config(team: str, stack_config: dict[str, str]) -> list[str]:
    """Add the API's reserved concurrency and the zones to `stack_config` if unset.

    AWS is called, because both values depend on the account. Return a line for each value that
    could not be determined, except a line about missing credentials. Raise SettingsInvalid if the
    settings or the cluster configuration are invalid.
    """
    return [*_complete_concurrency(team, stack_config), *_complete_zones(team, stack_config)]


def _complete_concurrency(team: str, stack_config: dict[str, str]) -> list[str]:
    """Set `apiConcurrency` in `stack_config` if unset: the default, or -1 in a small account.

    Return a warning if AWS did not report the limits, but [] without credentials. -1 reserves
    nothing. Raise SettingsInvalid.
    """
    settings, name = _read_settings(team, stack_config), f"{PROJECT}:apiConcurrency"
    if name in stack_config:
        return []
    found = read_concurrency(settings, aws_clients(settings.region))
    if isinstance(found, Unknown):
        # Pulumi itself reports missing credentials.
        is_told = sdk.NoCredentialsError.__name__ in found.why
        return [] if is_told else [f"{name}: nothing is reserved for the API: {found.why}"]
    stack_config[name] = str(default_api_concurrency(settings, found))
    return []


def _complete_zones(team: str, stack_config: dict[str, str]) -> list[str]:
    """Set `zones` in `stack_config` to the zones that offer the pools' types.

    Change nothing if zones or a network are set. Return a warning if no zone was found or EC2 did
    not answer, and [] otherwise. Raise SettingsInvalid.
    """
    settings = _read_settings(team, stack_config)
    text = _read_cluster(settings)
    zones = f"{PROJECT}:zones"
    if settings.network is not None or zones in stack_config:
        return []
    found, trouble = default_zones(settings.region, pool_types(check_cluster(text)))
    if found:
        stack_config[zones] = json.dumps(found)
    return [f"{trouble}; instances may be in {' and '.join(settings.zones)}"] if trouble else []


def check_account(team: str, stack_config: Mapping[str, object]) -> list[Finding]:
    """Return findings on whether a team's stack can run in the account and remote accounts.

    AWS and the clouds of remote accounts are called with the deployer's credentials. Registries are
    asked for the images of trials. A failed call becomes a warning, and refused credentials an
    error. Raise SettingsInvalid if the settings, the
    cluster configuration or a pool is invalid.
    """
    settings = _read_settings(team, stack_config)
    text = _read_cluster(settings)
    cluster = check_pools(text, partial(find_pool_problems, settings))
    facts = read_account(settings, cluster, aws_clients(settings.region))
    return [
        *check_facts(settings, cluster, facts),
        *check_copies(settings, aws_clients(settings.region)),
        *check_remote_accounts(settings.remote_accounts, cluster),
        *check_images(cluster),
    ]


def deployer_policy(team: str, stack_config: Mapping[str, object], of_key: bool) -> str:
    """Return the deployer's IAM policy as JSON.

    With `of_key`, return instead the statement that must be added to the policy of `kmsKey`. AWS is
    not called. Raise SettingsInvalid if the settings are invalid.
    """
    settings = _read_settings(team, stack_config)
    if of_key:
        return json.dumps(log_key(settings.names), indent=1) + "\n"
    return deployer.render_policy(settings)


def launch_policy(team: str, stack_config: Mapping[str, object]) -> str:
    """Return as JSON the policy that the check needs to ask EC2 about the pools' launches.

    AWS is not called. Raise SettingsInvalid if the settings are invalid.
    """
    settings = _read_settings(team, stack_config)
    return json.dumps(deployer.launch_policy(settings), indent=1) + "\n"


def drain(team: str, stack_config: Mapping[str, object], progress: Progress) -> DrainReport:
    """Stop the tick, terminate the team's instances and delete the launch templates.

    Then do the same in the cluster's remote accounts. Return the sum of all. Raise SettingsInvalid,
    and DrainFailed if the table is protected, instances do not end or AWS refuses.
    """
    settings = _read_settings(team, stack_config)
    report = draining.drain(settings.names, aws_clients(settings.region), progress)
    return drain_remote_accounts(settings.remote_accounts, report, progress)


def find_leftovers(team: str, stack_config: Mapping[str, object]) -> list[str]:
    """Return the sorted ARNs of the remaining resources with the cluster's tag in the account.

    Terminated instances are left out. If AWS refuses or cannot be reached, return one line that
    says so. Raise SettingsInvalid if the settings are invalid.
    """
    settings = _read_settings(team, stack_config)
    return draining.find_leftovers(settings.names, aws_clients(settings.region))


def rollback(
    team: str, stack_config: Mapping[str, object], forward: bool, progress: Progress
) -> list[FunctionMove]:
    """Move the functions to the previous deployment, or to the newest with `forward`.

    Return a move for each function, also for a function that already runs the deployment.

    Raises:
        RollbackFailed: no earlier deployment exists, a function has no version of the deployment,
            or AWS refused. Only after a refusal can some functions have moved; call again for the
            rest.
        SettingsInvalid: the settings are invalid.
    """
    settings = _read_settings(team, stack_config)
    return move_functions(settings.names, aws_clients(settings.region), progress, forward=forward)


def prune(team: str, stack_config: Mapping[str, object], progress: Progress) -> int:
    """Delete the versions of functions that no rollback needs; return the number of versions.

    Raise PruneFailed if AWS refuses, RollbackFailed if a function or its alias is missing, and
    SettingsInvalid.
    """
    settings = _read_settings(team, stack_config)
    return prune_versions(settings.names, aws_clients(settings.region), progress)


def open_verifier(team: str, stack_config: Mapping[str, object]) -> AwsVerifier:
    """Return the self-test's calls of AWS with the deployer's credentials. Raise SettingsInvalid.

    AWS is not called.
    """
    settings = _read_settings(team, stack_config)
    return AwsVerifier(settings.names, aws_clients(settings.region))


def read_stores(team: str, stack_config: Mapping[str, object]) -> list[Store] | Unknown:
    """Read the table and the buckets from AWS; return Unknown if AWS refuses.

    Raise SettingsInvalid.
    """
    settings = _read_settings(team, stack_config)
    return stores.read_stores(settings.names, aws_clients(settings.region))


def restore(
    team: str, stack_config: Mapping[str, object], request: RestoreRequest, progress: Progress
) -> RestoreReport:
    """Restore the state in the team's table, and start the functions again.

    Raise RestoreFailed, after which the same call continues, and SettingsInvalid.
    """
    settings = _read_settings(team, stack_config)
    return state_restore.restore(settings, aws_clients(settings.region), request, progress)


def restore_lost_objects(
    team: str, stack_config: Mapping[str, object], moment: datetime | None, progress: Progress
) -> ObjectsReport:
    """Restore the lost objects of the team's buckets.

    Raise RestoreFailed, after which the same call continues, and SettingsInvalid.
    """
    settings = _read_settings(team, stack_config)
    clients = aws_clients(settings.region)
    return state_restore.restore_lost_objects(settings, clients, moment, progress)


def restore_policy(team: str, stack_config: Mapping[str, object]) -> str:
    """Return the IAM policy that a restore needs besides the deployer's. Raise SettingsInvalid."""
    return make_restore_policy(_read_settings(team, stack_config))


def _read_settings(team: str, stack_config: Mapping[str, object]) -> Settings:
    """Return the checked settings. Raise SettingsInvalid, also if they exceed a limit of AWS."""
    settings = parse_settings(team, setting_texts(stack_config))
    if problems := find_limit_problems(settings):
        raise SettingsInvalid(problems)
    return settings


def _archive_path(settings: Settings, setting: str, path: str) -> str:
    """Return `path`, or if empty the path of the archive in `dist`.

    Raise SettingsInvalid, which names `setting`, if the file does not exist.
    """
    architecture = settings.architecture
    name = bundle.archive_name(ARCHIVE_KINDS[setting], architecture)
    return find_archive(setting, path, name, f"python -m infra.aws.bundle {architecture}")


def _build_archive(kind: str, architecture: str, folder: Path) -> Path:
    """Build the archive of a kind in `folder`, and return the archive's path.

    `kind` is `functions` or `suggest`, and `architecture` is `x86_64` or `arm64`. Packages are
    downloaded. Raise CalledProcessError if pip or the compiler fails, KeyError for another kind or
    architecture, and OSError if a file cannot be written.
    """
    return bundle.build_archive(bundle.TARGETS[architecture], folder, kind)


ARCHIVES = FunctionArchives(ARCHIVE_KINDS, bundle.archive_name, _build_archive)
STORES = frozenset({"aws:dynamodb/table:Table", "aws:s3/bucket:Bucket"})
REMOTE_COMMANDS = RemoteCommands("aws", _read_settings, launcher_of)
PROGRAM = StackProgram(
    run=run,
    check_config=check_stack_config,
    check_account=check_account,
    deployer_policy=deployer_policy,
    drain=drain,
    find_leftovers=find_leftovers,
    rollback=rollback,
    prune=prune,
    open_verifier=open_verifier,
    trust_commands=REMOTE_COMMANDS.trust_commands,
    find_remote_leftovers=REMOTE_COMMANDS.find_remote_leftovers,
    find_dropped_accounts=REMOTE_COMMANDS.find_dropped_accounts,
    stores=STORES,
    archives=ARCHIVES,
    terraform=PROVIDER,
    run_export=run_export,
    complete_config=complete_stack_config,
    launch_policy=launch_policy,
    read_stores=read_stores,
    restore=restore,
    restore_objects=restore_lost_objects,
    restore_policy=restore_policy,
)
