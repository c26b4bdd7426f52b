"""`detcloud deploy verify`: the self-test of a deployed cluster."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from functools import partial
from pathlib import Path
from typing import Any, Final

from detcloud.cli.commands.deployment_process import add_stack_options
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.deployable_clouds import CLOUDS, DeployableCloud
from detcloud.cli.framework.exit_codes import FAILED, INTERRUPTED, OK
from detcloud.cli.framework.options import add_yes_option, confirm
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_value
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.terminal import sanitize
from detcloud.cli.verification.check_programs import CheckSettings, find_check_folder, new_label
from detcloud.cli.verification.cloud_calls import ChildCalls, CloudCalls, wait_with_progress
from detcloud.cli.verification.plan import Plan, check_cost, make_plan
from detcloud.cli.verification.report import Mask, Report, make_mask, plan_lines, step_lines
from detcloud.cli.verification.self_test import run_self_test
from detcloud.cli.verification.steps import Session
from detcloud.client import Client
from detcloud.client.endpoint import configured_url
from detcloud.client.team import load_team_token
from detcloud.shared.errors import DetcloudError
from detcloud.shared.version import __version__

COST_MAX: Final = 0.20
PARTS: Final = ("notice", "tunnel", "alarms")


def add_verify_arguments(parser: ArgumentParser, cloud: DeployableCloud) -> None:
    """Add the options of `verify_cluster`: the stack's, `--pool`, `--max-cost`, `--skip`,
    `--check`, `--report`, `--yes` and the output form (`--json` or `--yaml`). AWS has also
    `--fis-role`.
    """
    add_stack_options(parser)
    parser.add_argument(
        "--pool",
        dest="pools",
        action="append",
        default=[],
        metavar="POOL",
        help="check only this pool; may be repeated",
    )
    parser.add_argument(
        "--max-cost",
        type=_parse_cost,
        default=COST_MAX,
        metavar="DOLLARS",
        help=f"refuse a plan that costs more (default: {COST_MAX:.2f})",
    )
    parser.add_argument(
        "--skip",
        action="append",
        choices=PARTS,
        default=[],
        help="leave out this step; may be repeated",
    )
    parser.add_argument(
        "--check",
        type=Path,
        metavar="DIR",
        help="the folder with the check of a pool: config.yaml and gpu_check.py",
    )
    parser.add_argument(
        "--env",
        dest="variables",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set an environment variable of the check; may be repeated",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="the file for the report (default: detcloud-verify-NAME-TIME.txt)",
    )
    if cloud.name == "aws":
        parser.add_argument(
            "--fis-role",
            default="",
            metavar="ARN",
            help="interrupt a spot instance by the Fault Injection Service with this role",
        )
    add_yes_option(parser)
    add_output_options(parser, csv=False)


def verify_cluster(cloud: DeployableCloud, arguments: Namespace) -> int:
    """Check the pools, a notice, a tunnel and the alarms of a deployed cluster, after confirmation.

    Print a report, and write the report to a file.

    The experiments are deleted at the end, or archived if a step failed. Instances that the
    self-test caused are ended, also after Ctrl-C. Return 0 if no step failed, 1 if a step failed or
    the user declined, and INTERRUPTED after Ctrl-C.

    Raises:
        DetcloudError: no cluster is configured, the cluster is not the team's, no pool can be
            checked, or the plan costs more than `--max-cost`. Or packages, the server or the
            settings file are missing, or the report cannot be written. Or stdin is not a terminal
            and `--yes` is missing.
    """
    client = _connect(arguments)
    folder = find_check_folder(arguments.check)
    calls = ChildCalls(cloud, arguments)
    with show_progress("planning") as progress:
        overview = client.overview()
        _check_identity(overview["cluster_id"], client.url, arguments.team)
        place = wait_with_progress(lambda: calls.call("place"), progress, "reading the settings")
        plan = wait_with_progress(
            lambda: _read_plan(client, calls, cloud, arguments), progress, "reading the pools"
        )
    mask = make_mask([place["account"], *place["private"]])
    for line in plan_lines(plan):
        _announce(line)
    check_cost(plan, arguments.max_cost)
    if not confirm(f"Launch instances for about {plan.cost:.3f} $?", arguments):
        return FAILED
    facts = _facts(cloud, arguments, str(overview["version"]), place)
    report = Report(facts, plan)
    session = Session(
        client,
        calls,
        cloud.name,
        folder,
        lambda line: _announce(mask(line)),
        getattr(arguments, "fis_role", ""),
        CheckSettings(new_label(), tuple(arguments.variables)),
    )
    was_interrupted = run_self_test(session, report, arguments.skip)
    _publish(report, arguments, mask)
    if was_interrupted:
        return INTERRUPTED
    return FAILED if report.has_failed else OK


def _connect(arguments: Namespace) -> Client:
    """Return a client of the configured cluster, with the team's token if no other is known.

    Raises DetcloudError if no cluster is configured.
    """
    url = configured_url(arguments.url)
    if url is None:
        raise DetcloudError("no cluster is configured: give its address with --url")
    try:
        return connect(arguments)
    except DetcloudError:
        arguments.client = Client(url, load_team_token(arguments.team).token)
        client: Client = arguments.client
        return client


def _check_identity(cluster: str, url: str, team: str) -> None:
    """Raise DetcloudError unless the cluster at the address is the team's."""
    if cluster != f"detcloud-{team}":
        raise DetcloudError(
            f"the cluster at {url} is {cluster}, not detcloud-{team}: give the team's address with "
            "--url"
        )


def _read_plan(
    client: Client, calls: CloudCalls, cloud: DeployableCloud, arguments: Namespace
) -> Plan:
    """Read the pools and the prices of offerings, and return the plan.

    The cluster has offerings of a pool only once the pool had work. The cloud's calls return the
    offerings of the other pools.

    Raises:
        DetcloudError: no pool can be checked, or the cloud refused.
    """
    pools = [client.resource_pool(pool.name).data for pool in client.resource_pools()]
    unpriced = [
        pool
        for pool in pools
        if not pool.get("offerings")
        and (pool["config"]["provider"] or {}).get("type") == cloud.name
    ]
    if unpriced:
        providers = [json.dumps(pool["config"]["provider"]) for pool in unpriced]
        answer = calls.call("prices", providers=providers)
        for pool, offerings in zip(unpriced, answer["offerings"], strict=True):
            pool["offerings"] = offerings
    return make_plan(
        pools,
        cloud.name,
        arguments.pools,
        has_notice="notice" not in arguments.skip,
        has_fault_service=bool(getattr(arguments, "fis_role", "")),
    )


def _facts(
    cloud: DeployableCloud, arguments: Namespace, version: str, place: dict[str, Any]
) -> dict[str, Any]:
    """Return the facts for the head of a report."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "team": arguments.team,
        "cloud": cloud.name,
        "account": place["account"],
        "region": place["region"],
        "command line version": __version__,
        "cluster version": version,
        "python": sys.version.split()[0],
    }


def _publish(report: Report, arguments: Namespace, mask: Mask) -> None:
    """Print the report in the output form, and write the report as text to the file.

    Raises DetcloudError if the file cannot be written.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = arguments.report or Path(f"detcloud-verify-{arguments.team}-{stamp}.txt")
    if arguments.form == "text":
        for line in [*step_lines(report.steps), *(f"left: {line}" for line in report.leftovers)]:
            print(sanitize(mask(line)))
    else:
        print_value(report.to_json(mask), arguments.form)
    try:
        path.write_text(report.render(mask), encoding="utf-8")
    except OSError as error:
        raise DetcloudError(f"{path} could not be written: {error.strerror}") from None
    _announce(f"the report is in {path}")


def _announce(line: str) -> None:
    """Print a line to stderr at once."""
    print(sanitize(line), file=sys.stderr, flush=True)


def _parse_cost(text: str) -> float:
    """Return an amount in dollars. Raise ArgumentTypeError for other texts."""
    try:
        cost = float(text)
    except ValueError:
        cost = -1.0
    if not 0 <= cost < 1_000_000:
        raise ArgumentTypeError(f"{text!r} is not an amount in dollars, such as 0.20")
    return cost


HANDLERS: Handlers = {
    f"deploy verify {cloud.name}": Handler(
        partial(add_verify_arguments, cloud=cloud), partial(verify_cluster, cloud)
    )
    for cloud in CLOUDS
}
