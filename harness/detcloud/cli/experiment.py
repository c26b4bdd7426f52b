"""Commands on one experiment or on their list."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from detcloud.cli.session import cluster_of, identifier, seconds
from detcloud.cli.table import (
    Column,
    add_output_options,
    field,
    print_items,
    print_json,
    print_record,
    time_column,
)

LIST_LIMIT = 100

COLUMNS = (
    field("ID", "id"),
    field("User", "user"),
    field("Name", "name"),
    field("State", "state"),
    Column("Progress", lambda item: f"{100 * (item.get('progress') or 0):.0f}%"),
    time_column("Start time", "created_ms"),
    time_column("End time", "ended_ms"),
    field("Resource pool", "resource_pool"),
    field("Searcher", "searcher"),
    field("Metric", "metric"),
    field("Best", "best_metric"),
)
DETAILS = (
    *COLUMNS,
    field("Best trial", "best_trial_id"),
    field("Trials", "trials"),
    field("Description", "description"),
    field("Labels", "labels"),
    field("Job", "job_id"),
    field("Message", "message"),
)


def experiment_argument(parser: ArgumentParser) -> None:
    parser.add_argument("experiment_id", type=identifier, metavar="EXPERIMENT")


def listing_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--state", help="only these states, such as ACTIVE,PAUSED")
    parser.add_argument("--user", help="only this user's")
    parser.add_argument("--limit", type=identifier, default=LIST_LIMIT, help="newest first")
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
    return 0


def config_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)


def config(arguments: Namespace) -> int:
    """Prints JSON, which every YAML reader takes."""
    print_json(cluster_of(arguments).experiment(arguments.experiment_id).data.get("config"))
    return 0


def wait_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument("--polling-interval", type=seconds, default=1.0, metavar="SECONDS")


def wait(arguments: Namespace) -> int:
    experiment = cluster_of(arguments).experiment(arguments.experiment_id)
    state = experiment.wait(arguments.polling_interval)
    print(f"experiment {experiment.id} ended: {state}")
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
        print(f"experiment {answer['id']} is {answer['state']}", file=sys.stdout)
    return 0
