"""Commands on one experiment or on their list."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from detcloud.cli.session import cluster_of, count, identifier, seconds
from detcloud.cli.table import (
    Column,
    Item,
    add_output_options,
    cell_text,
    field,
    print_items,
    print_json,
    print_record,
    time_column,
)
from detcloud.cli.terminal import counted
from detcloud.client import Experiment

LIST_LIMIT = 100

COLUMNS = (
    field("ID", "id"),
    field("User", "user", spare=3),
    field("Name", "name"),
    field("State", "state"),
    Column("Progress", lambda item: f"{100 * (item.get('progress') or 0):.0f}%"),
    time_column("Start time", "created_ms", spare=2),
    time_column("End time", "ended_ms", spare=5),
    field("Resource pool", "resource_pool", spare=6),
    field("Searcher", "searcher", spare=4),
    field("Metric", "metric", spare=1),
    field("Best", "best_metric"),
)


def _trials_text(experiment: Item) -> str:
    counts = experiment.get("trials") or {}
    return ", ".join(f"{count} {name}" for name, count in counts.items())


DETAILS = (
    *COLUMNS,
    field("Best trial", "best_trial_id"),
    Column("Trials", _trials_text),
    field("Description", "description"),
    Column("Labels", lambda item: ", ".join(item.get("labels") or [])),
    field("Job", "job_id"),
    field("Message", "message"),
)


def experiment_argument(parser: ArgumentParser) -> None:
    parser.add_argument("experiment_id", type=identifier, metavar="EXPERIMENT", help="its id")


def listing_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--state", metavar="STATES", help="only these states, such as ACTIVE,PAUSED"
    )
    parser.add_argument("--user", help="only this user's")
    parser.add_argument(
        "--limit",
        type=count,
        default=LIST_LIMIT,
        metavar="N",
        help=f"only the newest (default: {LIST_LIMIT})",
    )
    parser.add_argument("--all", "-a", action="store_true", help="no limit")
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    states = arguments.state.upper().split(",") if arguments.state else ()
    limit = None if arguments.all else arguments.limit
    found = cluster_of(arguments).experiments(states=states, user=arguments.user, limit=limit)
    print_items(COLUMNS, (experiment.data for experiment in found), arguments)
    return 0


def describe_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    add_output_options(parser, csv=False)


def describe(arguments: Namespace) -> int:
    experiment = cluster_of(arguments).experiment(arguments.experiment_id)
    print_record(DETAILS, experiment.data, arguments)
    if not arguments.json:
        print_failed_trial(experiment)
    return 0


def print_failed_trial(experiment: Experiment) -> None:
    """Says on stderr which command shows why a trial failed, if one did."""
    if experiment.state != "ERROR" and not (experiment.data.get("trials") or {}).get("errored"):
        return
    failed = [trial.id for trial in experiment.trials() if trial.state == "ERROR"]
    if failed:
        first = min(failed)
        more = f" (failed too: {counted(len(failed) - 1, 'trial')})" if len(failed) > 1 else ""
        print(f"hint: `detcloud trial logs {first}` shows why it failed{more}", file=sys.stderr)


def config_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)


def config(arguments: Namespace) -> int:
    """Prints JSON, which every YAML reader takes."""
    print_json(cluster_of(arguments).experiment(arguments.experiment_id).data.get("config"))
    return 0


def wait_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument(
        "--polling-interval",
        type=seconds,
        default=1.0,
        metavar="SECONDS",
        help="between two looks (default: 1)",
    )
    parser.add_argument("--json", action="store_true", help="print the ended experiment as JSON")


def wait(arguments: Namespace) -> int:
    experiment = cluster_of(arguments).experiment(arguments.experiment_id)
    state = experiment.wait(arguments.polling_interval)
    if arguments.json:
        print_json(experiment.data)
    else:
        # The line's last word is the state, for scripts; the reason is for those who read.
        print(f"experiment {experiment.id} ended: {state}", flush=True)
        if message := experiment.data.get("message"):
            print(f"reason: {cell_text(message)}", file=sys.stderr)
        print_failed_trial(experiment)
    return 0 if state == "COMPLETED" else 1


def pause_arguments(parser: ArgumentParser) -> None:
    _command_arguments(parser)


def pause(arguments: Namespace) -> int:
    return _command(arguments, "pause")


def activate_arguments(parser: ArgumentParser) -> None:
    _command_arguments(parser)


def activate(arguments: Namespace) -> int:
    return _command(arguments, "activate")


def cancel_arguments(parser: ArgumentParser) -> None:
    _command_arguments(parser)


def cancel(arguments: Namespace) -> int:
    return _command(arguments, "cancel")


def kill_arguments(parser: ArgumentParser) -> None:
    _command_arguments(parser)


def kill(arguments: Namespace) -> int:
    return _command(arguments, "kill")


def _command_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    add_output_options(parser, csv=False)


def _command(arguments: Namespace, name: str) -> int:
    answer = cluster_of(arguments).post(f"/experiments/{arguments.experiment_id}/{name}")
    if arguments.json:
        print_json(answer)
    else:
        print(f"experiment {answer['id']} is {answer['state']}")
    return 0
