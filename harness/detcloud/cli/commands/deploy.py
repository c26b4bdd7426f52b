"""`detcloud deploy`: deploys a team's cluster to a cloud or exports it for Terraform."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import Any

from detcloud.cli.commands.deployment_process import add_stack_options, run_deployment
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.deployable_clouds import CLOUDS, DeployableCloud, find_cloud
from detcloud.cli.framework.options import add_cloud_option, add_yes_option, confirm
from detcloud.cli.rendering.output import add_output_options, print_items
from detcloud.cli.rendering.table import Column, field_column
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client.endpoint import configured_url, store_credentials
from detcloud.client.team import TeamToken
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text

CHANGES = {
    "create": "make",
    "update": "change",
    "replace": "replace",
    "delete": "remove",
}

FINDING_COLUMNS = (
    field_column("Level", "level"),
    field_column("Subject", "subject"),
    field_column("Finding", "text"),
    field_column("To do", "remedy"),
)

MOVE_COLUMNS = (
    field_column("Function", "function"),
    field_column("From", "before"),
    field_column("To", "after"),
    field_column("Deployment", "deployment"),
)

CHANGE_COLUMNS = (
    Column("Change", lambda item: CHANGES.get(item["change"], item["change"])),
    field_column("Type", "type"),
    field_column("Name", "name"),
    Column("Properties", lambda item: ", ".join(item["properties"]) or None),
    Column("Content", lambda item: "lost" if item["loses_content"] else None),
)


def add_cloud_arguments(parser: ArgumentParser) -> None:
    """Add the options of `deploy_to_cloud`: `--team`, `--config`, `--preview`, `--no-check`,
    `--refresh` and `--new-stores`.
    """
    add_stack_options(parser)
    parser.add_argument(
        "--preview", action="store_true", help="show what would change, without changing anything"
    )
    _add_no_check_option(parser)
    _add_refresh_options(parser)


def deploy_to_cloud(cloud: DeployableCloud, arguments: Namespace) -> int:
    """Create or update a team's cluster, print the cluster's address, and return 0. With
    `--preview`, change nothing in the cloud, and print only the numbers of resources by change.

    The account is checked first unless `--no-check` is given. A deployment is refused if a deployed
    table, database or bucket no longer exists, unless `--new-stores` is given. A missing token file
    of the team is created, also with `--preview`. A deployment adds the digest of the token to a
    settings file without a digest, and removes old function versions. If no other cluster is
    configured, the token is stored, so that later commands use the new cluster. The output of the
    child process goes to stderr. The run has no time limit.

    Raises:
        DetcloudError: packages, the server or the settings file are missing, the token file is
            unusable, or the check or the deployment failed.
    """
    flags = _chosen_flags(arguments, "preview", "no-check", "refresh", "new-stores")
    token, answer = run_deployment("deploy", cloud, arguments, *flags)
    if arguments.preview:
        print(f"nothing was changed; resources: {_preview_text(answer['changes'])}")
        return 0
    _print_cluster(token, answer)
    return 0


def _preview_text(counts: dict[str, int]) -> str:
    """Return `77 to create, 2 unchanged` for the counts of resources by Pulumi's operation, sorted
    by operation. Return `none` without counts.
    """
    texts = [
        f"{count} unchanged" if operation == "same" else f"{count} to {operation}"
        for operation, count in sorted(counts.items())
    ]
    return ", ".join(texts) or "none"


def add_check_arguments(parser: ArgumentParser) -> None:
    """Add the options of `check_account`: `--team`, `--config` and the output form (`--json`,
    `--yaml` or `--csv`).
    """
    add_stack_options(parser)
    add_output_options(parser)


def check_account(cloud: DeployableCloud, arguments: Namespace) -> int:
    """Print a line for each finding on the account. Return 1 if a finding is an error, otherwise 0.
    Without findings, print nothing.

    With `--json`, `--yaml` or `--csv`, print the findings in that form. Nothing is deployed, but a
    missing token file of the team is created.

    Raises:
        DetcloudError: packages, the server or the settings file are missing, the token file is
            unusable, or the check failed.
    """
    _, answer = run_deployment("check", cloud, arguments)
    findings = answer["findings"]
    if arguments.form == "text":
        for finding in findings:
            print(sanitize(_finding_line(finding)))
    else:
        print_items(FINDING_COLUMNS, findings, arguments)
    return 1 if any(finding["level"] == "error" for finding in findings) else 0


def _finding_line(finding: dict[str, str]) -> str:
    """Return the level, the subject and the text of a finding, and the remedy if the finding has a
    remedy.
    """
    remedy = f"; {finding['remedy']}" if finding["remedy"] else ""
    return f"{finding['level']:<8} {finding['subject']}: {finding['text']}{remedy}"


def add_upgrade_arguments(parser: ArgumentParser) -> None:
    """Add the options of `upgrade_cluster`: `--team`, `--config`, `--yes`, `--no-check`,
    `--refresh`, `--new-stores` and the output form (`--json`, `--yaml` or `--csv`).
    """
    add_stack_options(parser)
    add_yes_option(parser)
    _add_no_check_option(parser)
    _add_refresh_options(parser)
    add_output_options(parser)


def upgrade_cluster(cloud: DeployableCloud, arguments: Namespace) -> int:
    """Print the pending changes of a deployed cluster, apply the changes after confirmation, and
    return 0. Return 1 if the user declined.

    Without changes, print a sentence, or an empty list in other forms, and ask nothing. The
    question names resources that lose their content. The upgrade has the effects of
    `deploy_to_cloud`, but only as text the address is printed and the team's token stored. The
    account is checked unless `--no-check` is given, and a missing token file of the team is
    created.

    Raises:
        DetcloudError: packages, the server or the settings file are missing, the token file is
            unusable, or the deployment failed. Or changes are pending, stdin is not a terminal and
            `--yes` is missing.
    """
    choice = _chosen_flags(arguments, "refresh", "new-stores")
    flags = [*choice, *_chosen_flags(arguments, "no-check")]
    _, answer = run_deployment("preview", cloud, arguments, *flags)
    changes = answer["changes"]
    if not changes and arguments.form == "text":
        print("the cluster matches its settings")
        return 0
    print_items(CHANGE_COLUMNS, changes, arguments)
    if not changes:
        return 0
    lost = sorted(
        f"{change['type'].rpartition(':')[2]} {change['name']}"
        for change in changes
        if change["loses_content"]
    )
    loss = f", and lose the content of {', '.join(lost)}" if lost else ""
    if not confirm(f"Apply {count_text(len(changes), 'change')}{loss}?", arguments):
        return 1
    # The account has been checked.
    token, answer = run_deployment("deploy", cloud, arguments, "--no-check", *choice)
    if arguments.form == "text":
        _print_cluster(token, answer)
    return 0


def add_destroy_arguments(parser: ArgumentParser) -> None:
    """Add the options of `destroy_cluster`: `--team`, `--config`, `--yes` and `--drain-only`."""
    add_stack_options(parser)
    add_yes_option(parser)
    parser.add_argument(
        "--drain-only",
        action="store_true",
        help="only terminate the cluster's instances and prevent new launches, so that Terraform "
        "can delete the stack",
    )


def destroy_cluster(cloud: DeployableCloud, arguments: Namespace) -> int:
    """Terminate the cluster's instances and delete the stack with all data, after confirmation.
    Print the numbers of ended instances and deleted launch templates.

    With `--drain-only`, keep the stack, but launch no more instances. Return 1 if the user declined
    or resources with the cluster's tag are left, otherwise 0. Leftovers are printed. Leftovers in
    other clouds are printed too, but the exit code stays 0. The team's token file is kept, or
    created if missing.

    Raises:
        DetcloudError: packages, the server or the settings file are missing, the token file is
            unusable, or the deletion failed. Or stdin is not a terminal and `--yes` is missing.
    """
    team = arguments.team
    loss = "" if arguments.drain_only else ", and delete the cluster, experiments and checkpoints"
    if not confirm(
        f"Terminate all instances of the cluster {team} on {cloud.title}{loss}?", arguments
    ):
        return 1
    how = "drain" if arguments.drain_only else "destroy"
    _, answer = run_deployment(how, cloud, arguments)
    instances, templates = answer["instances"], answer["templates"]
    ended = count_text(instances, "instance")
    print(f"{ended} ended, {count_text(templates, 'launch template')} deleted")
    if arguments.drain_only:
        print("the cluster will not launch any more instances")
        return 0
    for name in answer["leftovers"]:
        print(f"still listed with the cluster's tag: {name}")
    for name in answer["remote_leftovers"]:
        print(f"not deleted in another cloud: {name}")
    if answer["remote_leftovers"]:
        command = f"detcloud deploy trust {cloud.name} --team {team} --remove"
        print(f"`{command}` prints the script that removes what is left in other clouds")
    print(f"the cluster {team} was deleted")
    return 1 if answer["leftovers"] else 0


def add_rollback_arguments(parser: ArgumentParser) -> None:
    """Add the options of `roll_back_cluster`: `--team`, `--config`, `--forward` and the output form
    (`--json`, `--yaml` or `--csv`).
    """
    add_stack_options(parser)
    parser.add_argument(
        "--forward", action="store_true", help="return to the newest deployment instead"
    )
    add_output_options(parser)


def roll_back_cluster(cloud: DeployableCloud, arguments: Namespace) -> int:
    """Move the functions to the previous deployment, print the versions of each function, and
    return 0. The user is not asked.

    With `--forward`, move the functions to the newest deployment. A missing token file of the team
    is created.

    Raises:
        DetcloudError: packages, the server or the settings file are missing, the token file is
            unusable, or the rollback failed, for example without a previous deployment.
    """
    flags = ["--forward"] if arguments.forward else []
    _, answer = run_deployment("rollback", cloud, arguments, *flags)
    print_items(MOVE_COLUMNS, answer["moves"], arguments)
    return 0


def prune_versions(cloud: DeployableCloud, arguments: Namespace) -> int:
    """Remove old function versions that no rollback needs, print the number of removed versions,
    and return 0. The user is not asked.

    A missing token file of the team is created.

    Raises:
        DetcloudError: packages, the server or the settings file are missing, the token file is
            unusable, or the removal failed.
    """
    _, answer = run_deployment("prune", cloud, arguments)
    print(f"{count_text(answer['versions'], 'old function version')} removed")
    return 0


def add_policy_arguments(parser: ArgumentParser) -> None:
    """Add the options of `print_policy`: `--team`, `--config`, `--key`, `--launches` and
    `--restore`.
    """
    add_stack_options(parser)
    others = parser.add_mutually_exclusive_group()
    others.add_argument(
        "--key",
        action="store_true",
        help="print the statement for the key policy of kmsKey instead",
    )
    others.add_argument(
        "--launches",
        action="store_true",
        help="print the policy with which the check asks EC2 about the pools' launches instead",
    )
    others.add_argument(
        "--restore",
        action="store_true",
        help="print the further permissions that `detcloud deploy restore` needs instead",
    )


def print_policy(cloud: DeployableCloud, arguments: Namespace) -> int:
    """Print the permissions for a deployment, or for the purpose of an option. Return 0.

    `--key` prints the statement for the key policy, `--launches` the policy for the check of
    launches, and `--restore` the further permissions of a restore.

    Nothing is deployed, but a missing token file of the team is created.

    Raises:
        DetcloudError: packages, the server or the settings file are missing, the token file is
            unusable, or the child process failed.
    """
    flags = _chosen_flags(arguments, "key", "launches", "restore")
    _, answer = run_deployment("policy", cloud, arguments, *flags)
    sys.stdout.write(answer["policy"])
    return 0


def add_trust_arguments(parser: ArgumentParser) -> None:
    """Add the options of `print_trust_commands`: the required `--team`, `--config`, the path of the
    team's settings, and `--remove`, False by default.
    """
    add_stack_options(parser)
    parser.add_argument(
        "--remove",
        action="store_true",
        help="print the commands that remove the trust, for use when the other clouds have no "
        "instances left",
    )


def print_trust_commands(cloud: DeployableCloud, arguments: Namespace) -> int:
    """Print the script that makes other clouds trust the cluster, and return 0. The administrators
    of these clouds run the script.

    With `--remove`, print the script that removes the trust. No script is run here. A missing token
    file of the team is created.

    Raises:
        DetcloudError: the settings list no other clouds, packages, the server or the settings file
            are missing, the token file is unusable, or the child process failed.
    """
    flags = ["--remove"] if arguments.remove else []
    _, answer = run_deployment("trust", cloud, arguments, *flags)
    if not answer["commands"]:
        raise DetcloudError(
            "nothing to create: the stack's settings list no other clouds in "
            "detcloud:otherClouds; see docs/resource-pools.md"
        )
    sys.stdout.write(answer["commands"])
    return 0


def add_export_arguments(parser: ArgumentParser) -> None:
    """Add the options of `export_to_terraform`: `--team`, `--config`, the required path `--output`
    and `--cloud`.
    """
    add_stack_options(parser)
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="the folder to write the files to"
    )
    add_cloud_option(parser)


def export_to_terraform(arguments: Namespace) -> int:
    """Write the team's cluster as files for Terraform into the folder of `--output`, print the next
    commands, and return 0.

    Nothing is deployed. A missing token file of the team is created, and its path is printed if the
    cluster's first administrator has this token.

    Raises:
        DetcloudError: packages, the server or the settings file are missing, the cloud is unknown,
            the token file is unusable, or the export failed.
    """
    output, cloud = arguments.output.absolute(), find_cloud(arguments.cloud)
    token, answer = run_deployment("export", cloud, arguments, f"--output={output}")
    print(f"{output} has {' and '.join(answer['files'])}")
    print(
        f"to create the cluster, run `terraform -chdir={output} init`, then "
        f"`terraform -chdir={output} apply`"
    )
    if answer["admin_sha256"] == token.sha256:
        print(f"the first administrator's token is in {token.path}")
    return 0


def _add_no_check_option(parser: ArgumentParser) -> None:
    """Add `--no-check`, False by default, which `deploy_to_cloud` and `upgrade_cluster` pass to the
    child process.
    """
    parser.add_argument(
        "--no-check", action="store_true", help="deploy without checking the account"
    )


def _add_refresh_options(parser: ArgumentParser) -> None:
    """Add `--refresh` and `--new-stores`, False by default, which `deploy_to_cloud` and
    `upgrade_cluster` pass to the child process.
    """
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="read all resources from the cloud first, and undo changes made outside detcloud",
    )
    parser.add_argument(
        "--new-stores",
        action="store_true",
        help="create a lost table, database or bucket again, empty",
    )


def _chosen_flags(arguments: Namespace, *names: str) -> list[str]:
    """Return `--NAME` for each flag of `names` that the user gave."""
    return [f"--{name}" for name in names if getattr(arguments, name.replace("-", "_"))]


def _print_cluster(token: TeamToken, answer: dict[str, Any]) -> None:
    """Print the address, the DNS target if the cluster has a domain, and how to connect to a
    deployed cluster.

    The token is stored for later commands if no other cluster is configured.

    Raises:
        DetcloudError: the credentials file cannot be read or written.
    """
    outputs = answer["outputs"]
    print(f"the cluster {outputs['cluster']} is up at {outputs['url']}")
    if "domainTarget" in outputs:
        print(f"point the DNS record of the cluster's domain to {outputs['domainTarget']}")
    _print_token_hint(token, answer["admin_sha256"], outputs["url"])


def _print_token_hint(token: TeamToken, sha256: str, url: str) -> None:
    """Print how to connect to the new cluster. Store the token in the credentials file if no other
    cluster is configured.

    If another cluster is configured, print the command that stores the token. If the cluster's
    first administrator has another token than the team's, store nothing, and print that this
    administrator must create a token.

    Args:
        token: the administrator token of the team.
        sha256: the digest of the token of the cluster's first administrator.
        url: the address of the new cluster.

    Raises:
        DetcloudError: the credentials file cannot be read or written.
    """
    if sha256 != token.sha256:
        print(
            "the stack's settings name another first administrator: ask them to run "
            "`detcloud token create`, and store the token with `detcloud token login`"
        )
    elif configured_url() in (None, url):
        path = store_credentials(url, token.token)
        print(f"commands now use this cluster; its token is stored in {path}")
    else:
        print("commands still use another cluster; to use the new cluster, run:")
        print(f"detcloud --url {url} token login - < {token.path}")


HANDLERS: Handlers = {
    **{
        f"deploy {cloud.name}": Handler(add_cloud_arguments, partial(deploy_to_cloud, cloud))
        for cloud in CLOUDS
    },
    **{
        f"deploy {verb} {cloud.name}": Handler(add_arguments, partial(run, cloud))
        for cloud in CLOUDS
        for verb, add_arguments, run in (
            ("check", add_check_arguments, check_account),
            ("upgrade", add_upgrade_arguments, upgrade_cluster),
            ("rollback", add_rollback_arguments, roll_back_cluster),
            ("prune", add_stack_options, prune_versions),
            ("policy", add_policy_arguments, print_policy),
            ("trust", add_trust_arguments, print_trust_commands),
            ("destroy", add_destroy_arguments, destroy_cluster),
        )
    },
    "deploy export": Handler(add_export_arguments, export_to_terraform),
}
