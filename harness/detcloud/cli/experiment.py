"""Lists and describes experiments, and waits for one."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path

from detcloud.cli.cost import money
from detcloud.cli.options import (
    add_paging_options,
    fetched_max,
    foreign_option,
    identifier,
    identifiers,
    paged,
    seconds,
)
from detcloud.cli.output import add_output_options, print_items, print_record, print_value
from detcloud.cli.progress import progress
from detcloud.cli.search_method import print_method_hint
from detcloud.cli.session import client_of
from detcloud.cli.table import Column, Item, cell_text, field, gist_text, time_column
from detcloud.cli.terminal import bar, counted
from detcloud.client import Experiment, Trial
from detcloud.client.curves import RecordedCurves

LIST_LIMIT = 100


def _progress_text(experiment: Item) -> str | None:
    done = experiment.get("progress")
    return None if done is None else f"{100 * done:.0f}%"


COLUMNS = (
    field("ID", "id"),
    field("User", "user", spare=3),
    field("Name", "name"),
    field("State", "state"),
    Column("Progress", _progress_text),
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


def _kept_text(experiment: Item) -> str:
    kept = ("save_experiment_best", "save_trial_best", "save_trial_latest")
    return " ".join(f"{name}={experiment.get(name)}" for name in kept)


def _cost_text(experiment: Item) -> str | None:
    limit = experiment.get("max_cost")
    most = "" if limit is None else f" of {money(limit)}"
    return f"{money(experiment.get('cost', 0.0))}{most}"


DETAILS = (
    *COLUMNS,
    field("Best trial", "best_trial_id"),
    Column("Trials", _trials_text),
    field("Description", "description"),
    Column("Labels", lambda item: ", ".join(item.get("labels") or [])),
    field("Archived", "archived"),
    field("Seed", "seed"),
    Column("Cost", _cost_text),
    field("Max slots", "max_slots"),
    field("Priority", "priority"),
    field("Weight", "weight"),
    Column("Kept", _kept_text),
    field("Job", "job_id"),
    field("Message", "message"),
)


def experiment_argument(parser: ArgumentParser) -> None:
    parser.add_argument("experiment_id", type=identifier, metavar="EXPERIMENT", help="its id")


def experiment_of(arguments: Namespace) -> Experiment:
    """The experiment that `experiment_argument` names."""
    return client_of(arguments).experiment(arguments.experiment_id)


def listing_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--state", metavar="STATES", help="only these states, such as ACTIVE,PAUSED"
    )
    parser.add_argument("--user", help="only this user's")
    parser.add_argument("--label", help="only those with this label")
    parser.add_argument("--name", metavar="PART", help="only those whose name holds this")
    parser.add_argument("--archived", action="store_true", help="only archived ones")
    parser.add_argument("--all", "-a", action="store_true", help="archived ones too, and no limit")
    add_paging_options(parser, LIST_LIMIT, "newest")
    foreign_option(parser, "--show_project", "--show-project", instead="labels group experiments")
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    found = client_of(arguments).experiments(
        states=arguments.state.upper().split(",") if arguments.state else (),
        user=arguments.user,
        label=arguments.label,
        name=arguments.name,
        archived=True if arguments.archived else None if arguments.all else False,
        limit=None if arguments.all else fetched_max(arguments),
    )
    print_items(COLUMNS, (experiment.data for experiment in paged(found, arguments)), arguments)
    return 0


def describe_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "experiment_ids",
        type=identifiers,
        nargs="+",
        metavar="EXPERIMENT",
        help="ids, with spaces or commas between them",
    )
    parser.add_argument("--metrics", action="store_true", help="every metric of its trials, too")
    parser.add_argument(
        "--outdir",
        type=Path,
        metavar="DIR",
        help="write experiments.csv, trials.csv, checkpoints.csv and, with --metrics, metrics.csv",
    )
    add_output_options(parser)


def describe(arguments: Namespace) -> int:
    from detcloud.cli.tables_folder import metric_items, print_metrics, write_tables

    client = client_of(arguments)
    ids = [number for part in arguments.experiment_ids for number in part]
    experiments = [client.experiment(number) for number in ids]
    if arguments.outdir is not None:
        write_tables(experiments, arguments.outdir, with_metrics=arguments.metrics)
        print(arguments.outdir)
        return 0
    if arguments.form in ("json", "yaml"):
        found = [dict(experiment.data) for experiment in experiments]
        for document, experiment in zip(found, experiments, strict=True):
            if arguments.metrics:
                document["metrics"] = metric_items([experiment])
        print_value(found[0] if len(found) == 1 else found, arguments.form)
        return 0
    if arguments.form == "csv":
        print_items(DETAILS, (experiment.data for experiment in experiments), arguments)
    else:
        _print_records(experiments, arguments)
    if arguments.metrics:
        print_metrics(experiments, arguments)
    return 0


def _print_records(experiments: list[Experiment], arguments: Namespace) -> None:
    for place, experiment in enumerate(experiments):
        if place:
            print()
        print_record(DETAILS, experiment.data, arguments)
        print_hint(experiment)
        print_method_hint(experiment)


def print_hint(experiment: Experiment) -> None:
    """Says on stderr which command shows why a trial failed, or why nothing was measured."""
    if experiment.state == "ERROR" or (experiment.data.get("trials") or {}).get("errored"):
        failed = [trial for trial in experiment.trials() if trial.state == "ERROR"]
        if failed:
            verb = "logs" if has_printed(failed[0]) else "describe"
            more = f" (failed too: {counted(len(failed) - 1, 'trial')})" if failed[1:] else ""
            shows = f"`detcloud trial {verb} {failed[0].id}` shows why it failed"
            print(f"hint: {shows}{more}", file=sys.stderr)
    elif experiment.state == "COMPLETED" and experiment.best_metric is None:
        print(
            f"hint: no trial reported a finite {cell_text(experiment.metric)}; "
            f"`detcloud history {experiment.id}` tells how each ended",
            file=sys.stderr,
        )


def has_printed(trial: Trial) -> bool:
    """Whether there is a log to look at: what could not be started has none."""
    return bool(trial.log_chunk(tail_bytes=1)["text"])


def curves_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)


def curves(arguments: Namespace) -> int:
    """Prints the document that `detcloud simulate --curves` reads."""
    print_value(read_curves(experiment_of(arguments)))
    return 0


def read_curves(experiment: Experiment) -> RecordedCurves:
    """Reads every trial's validations, under a progress line."""
    total = experiment.data["trials"]["requested"]
    trials = partial(counted, noun="trial")
    with progress(f"reading experiment {experiment.id}", trials) as shown:
        return experiment.curves(lambda read: shown.update(read, total))


def config_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    add_output_options(parser, csv=False)


def config(arguments: Namespace) -> int:
    """Prints YAML unless JSON is asked for."""
    form = "json" if arguments.form == "json" else "yaml"
    print_value(experiment_of(arguments).config, form)
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
    add_output_options(parser, csv=False)


def wait(arguments: Namespace) -> int:
    """Returns 0 when it completed, 1 when it ended otherwise."""
    experiment = experiment_of(arguments)
    with progress(f"experiment {experiment.id}") as shown:
        state = experiment.wait(
            arguments.polling_interval, on_look=lambda seen: shown.tell(_look_text(seen))
        )
    if arguments.form != "text":
        print_value(experiment.data, arguments.form)
    else:
        # The line's last word is the state, for scripts; the reason is for those who read.
        print(f"experiment {experiment.id} ended: {state}", flush=True)
        if message := experiment.data.get("message"):
            print(f"reason: {gist_text(message)}", file=sys.stderr)
        print_hint(experiment)
    return 0 if state == "COMPLETED" else 1


def _look_text(experiment: Experiment) -> str:
    done = experiment.data.get("progress") or 0.0
    return f"{experiment.state} {100 * done:.0f}% {bar(done)}"
