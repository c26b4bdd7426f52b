"""`detcloud deploy restore`: the restore of a deployed cluster's state, or of lost objects."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

from detcloud.cli.commands.deployment_process import add_stack_options, run_deployment
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.deployable_clouds import CLOUDS, DeployableCloud
from detcloud.cli.framework.options import add_yes_option, confirm
from detcloud.cli.rendering.terminal import sanitize
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text


def add_restore_arguments(parser: ArgumentParser) -> None:
    """Add the options of `restore_cluster`: `--team`, `--config`, `--time` or `--from`,
    `--objects`, and `--yes`.
    """
    add_stack_options(parser)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--time",
        default="",
        metavar="MOMENT",
        help="restore the state of this moment, like 2026-11-20T12:00:00Z",
    )
    chosen.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="SOURCE",
        help="restore this backup or export; without --time and --from, a lost table or database "
        "is restored from its newest backup",
    )
    parser.add_argument(
        "--objects",
        action="store_true",
        help="restore lost objects of the buckets instead of the state, while the cluster runs; "
        "with --time, the objects of this moment",
    )
    add_yes_option(parser)


def restore_cluster(cloud: DeployableCloud, arguments: Namespace) -> int:
    """Restore the cluster's state after confirmation, print the outcome, and return 0. Return 1 if
    the user declined.

    The functions are stopped meanwhile. A lost table or database is created again, and then a
    deployment connects the functions to it. The child process prints the steps with their seconds
    to stderr. After an error, the same command continues.

    With `--objects`, restore lost objects of the buckets instead, without a question. Print the
    outcome, and return 1 if files of checkpoints stay lost.

    Raises:
        DetcloudError: packages, the server or the settings file are missing, the token file is
            unusable, nothing can be restored, the cloud refused a call, or the deployment failed.
            Or stdin is not a terminal and `--yes` is missing.
    """
    if arguments.objects:
        return _restore_objects(cloud, arguments)
    team = arguments.team
    chosen = arguments.time or arguments.source or "the newest backup"
    if not confirm(
        f"Stop the cluster {team} on {cloud.title}, and restore the state of {chosen}? Everything "
        "since then is lost, and all runs start again from checkpoints.",
        arguments,
    ):
        return 1
    flags = [f"--time={arguments.time}"] if arguments.time else []
    flags += [f"--source={arguments.source}"] if arguments.source else []
    _, report = run_deployment("restore", cloud, arguments, *flags)
    _print_report(report)
    if report["is_new_store"]:
        _connect_store(cloud, arguments)
    return 0


def _restore_objects(cloud: DeployableCloud, arguments: Namespace) -> int:
    """Restore lost objects, print the outcome, and return 0, or 1 if checkpoints stay lost.

    Raises:
        DetcloudError: `--from` was given, or an error of `restore_cluster`.
    """
    if arguments.source:
        raise DetcloudError(
            "--objects and --from exclude each other: lost objects come from the versions in the "
            "buckets and from the setting `copies`"
        )
    flags = [f"--time={arguments.time}"] if arguments.time else []
    _, report = run_deployment("objects", cloud, arguments, *flags)
    found = report["checkpoints"]
    print(f"code, logs, metrics, events: {count_text(report['objects'], 'object')} restored")
    restored = f"{len(found['restored'])} restored ({count_text(found['files'], 'file')})"
    print(f"checkpoints: {found['intact']} intact, {restored}, {len(found['lost'])} lost")
    for folder in found["lost"]:
        print(f"lost: {sanitize(folder)}")
    if not found["lost"]:
        return 0
    print(
        "runs that need a lost checkpoint continue from an earlier checkpoint, or fail with an "
        "error that names the checkpoint"
    )
    return 1


def _print_report(report: dict[str, Any]) -> None:
    """Print the outcome of a restore in two lines."""
    written, deleted = count_text(report["written"], "row"), count_text(report["deleted"], "row")
    rows = "from a backup" if report["is_new_store"] else f"{written} written, {deleted} deleted"
    print(f"the state is restored ({rows}), and the functions run again")
    experiments = count_text(report["experiments"], "experiment")
    agents = count_text(report["agents"], "agent")
    print(f"from checkpoints continue: {experiments}; counted as lost until they enrol: {agents}")


def _connect_store(cloud: DeployableCloud, arguments: Namespace) -> None:
    """Deploy the stack, which connects the functions to the new table or database.

    Raises:
        DetcloudError: the deployment failed. The message tells that the state is restored.
    """
    try:
        run_deployment("deploy", cloud, arguments, "--no-check")
    except DetcloudError as error:
        raise DetcloudError(
            "the state is restored and the functions run, but new rows invoke them only once a "
            f"minute until `detcloud deploy {cloud.name} --team {arguments.team}`, or `terraform "
            f"apply` for an exported stack, has succeeded: {error}"
        ) from None
    print("the functions are connected to the restored store")


HANDLERS: Handlers = {
    f"deploy restore {cloud.name}": Handler(add_restore_arguments, partial(restore_cluster, cloud))
    for cloud in CLOUDS
}
