"""`detcloud config check`: checks a configuration file on this machine, then with the cluster."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.failures import detail_line
from detcloud.cli.framework.options import add_overrides_option
from detcloud.cli.framework.session import connect
from detcloud.cli.local.config_checker import CHECKER, CLUSTER_CHECKER, run_checker
from detcloud.cli.rendering.output import print_value
from detcloud.cli.rendering.streams import write_data
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client import NoCluster
from detcloud.client.endpoint import is_configured
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError, Unreachable

# Facts of a configuration that only a cluster can check.
ASKED_OF_CLUSTER = "resource pool, slots, mounts, checkpoint storage and template"
ASKED_OF_FLEET = "the pools, and your permission to change them"


class ClusterCheck(NamedTuple):
    """The result of checking a configuration with a cluster."""

    unchecked: str = ""
    """The reason why no cluster checked the configuration, or "" after a check."""
    problems: Sequence[dict[str, Any]] = ()
    """Details of the API error if the cluster refused the configuration."""
    warnings: Sequence[str] = ()
    """Warnings about an accepted configuration."""


def add_check_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `check_config`: the path FILE, `--json`, `--migrate`, `--cluster` or
    `--template`, `--offline` and `--config`.
    """
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment configuration")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--migrate", action="store_true", help="print FILE converted to the length form"
    )
    which.add_argument(
        "--cluster", action="store_true", help="FILE is a cluster configuration, with pools"
    )
    which.add_argument(
        "--template", metavar="NAME", help="a template that provides settings missing from FILE"
    )
    parser.add_argument("--offline", action="store_true", help="check without a cluster")
    add_overrides_option(parser)


def check_config(arguments: Namespace) -> int:
    """Print the problems of a configuration file or a summary, to stdout. Return 0 if the
    configuration is accepted, otherwise 1.

    The file is checked on this machine, then by the cluster. The local check is skipped with
    `--template`. The cluster is not asked with `--offline`, with `--migrate`, or after a failed
    local check. If no cluster answers, a notice on stderr lists the facts that were not checked.
    With `--migrate`, print the converted file instead, and change no file. With `--json`, print a
    report with both checks.

    Raises:
        DetcloudError: options exclude each other, or the server is not installed. A cluster that
            was named by `--url` or must have the template does not answer or refuses for another
            reason.
    """
    _refuse_useless_options(arguments)
    if arguments.template is None:
        flags = [f"--{name}" for name in ("json", "migrate") if getattr(arguments, name)]
        module = CLUSTER_CHECKER if arguments.cluster else CHECKER
        done = run_checker(arguments.file, arguments.overrides, flags, module=module)
        # Written here, where a full disk or a reader that left is no traceback of the checker's.
        sys.stderr.writelines(f"{sanitize(line)}\n" for line in done.stderr.splitlines())
        if done.returncode != 0 or arguments.migrate:
            write_data(done.stdout)
            return 0 if done.returncode == 0 else 1
        local = done.stdout
    else:
        local = json.dumps({"ok": True, "problems": [], "warnings": []}) if arguments.json else ""
    check = _check_with_cluster(arguments)
    if arguments.json:
        print_value(_add_cluster_check(json.loads(local), check))
    else:
        _print_cluster_check(arguments, local, check)
    return 1 if check.problems else 0


def _refuse_useless_options(arguments: Namespace) -> None:
    """Raise DetcloudError if `--cluster` was combined with `--config`, or `--template` with
    `--offline`.

    Otherwise do nothing.
    """
    if arguments.cluster and arguments.overrides:
        raise DetcloudError("--config sets fields of experiment configurations only")
    if arguments.template is not None and arguments.offline:
        raise DetcloudError("--template is stored on a cluster: it cannot be used with --offline")


def _check_with_cluster(arguments: Namespace) -> ClusterCheck:
    """Check the file with the cluster that `detcloud create` would use, and return the result.

    Nothing is submitted, changed or started. `unchecked` has the reason with `--offline`, without a
    running cluster, and for a cluster configuration without a configured cluster. A cluster that
    does not answer or refuses for another reason is a reason too. A connection is stored in
    `arguments.client`, and `main` closes the client.

    Raises:
        DetcloudError: the cluster does not answer or refuses for another reason, although `--url`
            or `--template` was given. Or the file cannot be read, or the address or token is
            unusable.
        NoCluster: no cluster is available, and `--template` was given.
    """
    if arguments.offline:
        return ClusterCheck("--offline was given")
    if arguments.cluster and not is_configured(arguments.url):
        # A cluster configuration is rarely meant for the local cluster.
        return ClusterCheck("--url was not given")
    try:
        client = connect(arguments)
        if arguments.cluster:
            client.configure(arguments.file, dry_run=True)
            return ClusterCheck()
        warnings = client.check_experiment(
            arguments.file, overrides=arguments.overrides, template=arguments.template
        )
        return ClusterCheck(warnings=warnings)
    except NoCluster:
        if arguments.template is not None:
            raise
        return ClusterCheck("no local cluster is running, and --url is not given")
    except ApiError as error:
        if error.code in ("invalid", "too_large"):
            return ClusterCheck(problems=_problems(error))
        return _check_without_answer(arguments, error)
    except Unreachable as error:
        return _check_without_answer(arguments, error)


def _problems(error: ApiError) -> list[dict[str, Any]]:
    """Return the problems of an API error with all fields of a problem.

    A missing `path` is "", and other missing fields are None. An error without details is a single
    problem with the error's message.
    """
    empty = {"path": "", "line": None, "value": None, "hint": None}
    return [{**empty, **detail} for detail in error.details or [{"message": error.message}]]


def _check_without_answer(arguments: Namespace, error: DetcloudError) -> ClusterCheck:
    """Return a check that has the text of the error as the reason why no cluster checked the file.

    Raises:
        DetcloudError: the error itself, if `--url` or `--template` was given.
    """
    if arguments.url is not None or arguments.template is not None:
        raise error
    return ClusterCheck(str(error))


def _add_cluster_check(report: dict[str, Any], check: ClusterCheck) -> dict[str, Any]:
    """Return a copy of the local report with the cluster's problems, new warnings and `cluster`.
    `ok` becomes False if the cluster found problems.

    `cluster` has `checked`, and the `reason` why no cluster checked the configuration, or None.
    """
    new = [warning for warning in check.warnings if warning not in report["warnings"]]
    return {
        **report,
        "ok": report["ok"] and not check.problems,
        "problems": [*report["problems"], *check.problems],
        "warnings": report["warnings"] + new,
        "cluster": {"checked": not check.unchecked, "reason": check.unchecked or None},
    }


def _print_cluster_check(arguments: Namespace, local: str, check: ClusterCheck) -> None:
    """Print the cluster's problems, or the local summary with the cluster's new warnings, to
    stdout.

    If no cluster checked the file, a notice on stderr lists the unchecked facts and the reason.

    Args:
        local: the text that the local checker printed. With `--template`, a sentence of acceptance
            replaces the text.
    """
    if check.problems:
        print(
            *(sanitize(detail_line(problem, str(arguments.file))) for problem in check.problems),
            sep="\n",
        )
        return
    if arguments.template is not None:
        local = f"{arguments.file} is accepted\n"
    write_data(local)
    for warning in check.warnings:
        if (line := f"warning: {sanitize(warning)}") not in local.splitlines():
            print(line)
    if check.unchecked:
        asked = ASKED_OF_FLEET if arguments.cluster else ASKED_OF_CLUSTER
        print(f"not checked with a cluster: {asked} ({sanitize(check.unchecked)})", file=sys.stderr)


HANDLERS: Handlers = {
    "config check": Handler(add_check_arguments, check_config),
}
