"""`detcloud experiment`: lists, describes and waits for experiments, and prints curves."""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path

from detcloud.cli.commands.experiment_list_arguments import parse_sort
from detcloud.cli.framework.argument_types import parse_ids, parse_seconds
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import TIMED_OUT
from detcloud.cli.framework.options import (
    add_metadata_option,
    add_paging_options,
    fetch_limit,
    skip_offset,
    split_states,
)
from detcloud.cli.framework.session import add_experiment_argument, connect, load_experiment
from detcloud.cli.rendering.columns import (
    EXPERIMENT_ACTIVITY,
    EXPERIMENT_COLUMNS,
    EXPERIMENT_DETAILS,
    EXPERIMENT_END,
    EXPERIMENT_SCHEDULE,
    PROJECT_COLUMNS,
    USE,
    value_column,
)
from detcloud.cli.rendering.conditions import condition_text
from detcloud.cli.rendering.experiment_tables import metric_items, print_metrics, write_tables
from detcloud.cli.rendering.fork_texts import print_family
from detcloud.cli.rendering.hints import print_failure_hint, print_search_method_hint
from detcloud.cli.rendering.output import (
    add_output_options,
    print_items,
    print_note,
    print_record,
    print_value,
)
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.proxy_ports import PROXY_PORTS, has_proxy_ports
from detcloud.cli.rendering.replacements import print_replacement_sums
from detcloud.cli.rendering.state_sentences import state_sentence
from detcloud.cli.rendering.table import shorten_message
from detcloud.cli.rendering.terminal import progress_bar
from detcloud.client import Client, Experiment
from detcloud.client.curves import RecordedCurves
from detcloud.client.experiment_list import SORT_FIELDS
from detcloud.client.fork_records import Family
from detcloud.client.records import Activity
from detcloud.client.replacement_records import ExperimentReplacements
from detcloud.shared.http import ApiError
from detcloud.shared.plurals import count_text

LIST_LIMIT = 100
NOT_FOUND = 404


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the options of `list_experiments`: filters, order, columns, `--show_project` and the
    output form (`--json`, `--yaml` or `--csv`).

    Also add the paging options `--limit`, by default LIST_LIMIT, `--offset` and `--pages`. The
    parser does not check the names of states.
    """
    parser.add_argument(
        "--view",
        metavar="NAME",
        help="use the filter, the order, the grouping and the metric and hyperparameter columns of "
        "a saved view; USER/NAME for a user's view; other options narrow or replace them",
    )
    parser.add_argument(
        "--filter",
        metavar="TEXT",
        help="list only experiments that match a filter, such as 'state:running metric:loss<0.3 "
        "lr>0.01 label:x user:me'",
    )
    parser.add_argument(
        "--state", metavar="STATES", help="list only these states, such as running,queued"
    )
    parser.add_argument(
        "--failed-trials", action="store_true", help="list only experiments with failed trials"
    )
    parser.add_argument("--user", help="list only experiments of this user")
    parser.add_argument("--label", help="list only experiments with this label")
    parser.add_argument(
        "--name", metavar="PART", help="list only experiments whose name contains PART"
    )
    parser.add_argument(
        "--workspace", "-w", metavar="NAME", help="list only experiments of this workspace"
    )
    parser.add_argument("--project", metavar="NAME", help="list only experiments of this project")
    add_metadata_option(parser)
    parser.add_argument("--archived", action="store_true", help="list only archived experiments")
    parser.add_argument(
        "--all", "-a", action="store_true", help="also list archived experiments, without a limit"
    )
    add_paging_options(parser, LIST_LIMIT, "newest")
    parser.add_argument(
        "--sort-by",
        type=parse_sort,
        metavar="FIELD",
        help=f"the field to sort by: {', '.join(SORT_FIELDS)}, or a column as in --column (default:"
        " id, or the view's); fields other than id and submitted sort only the newest 20,000 "
        "experiments",
    )
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        dest="columns",
        metavar="COLUMN",
        help="also show a metric or a hyperparameter, such as metric:loss or hparam:optimizer.lr; "
        "repeatable",
    )
    parser.add_argument("--order-by", choices=("asc", "desc"), help="default: desc, or the view's")
    parser.add_argument(
        "--show_project",
        "--show-project",
        action="store_true",
        help="also show workspace and project",
    )
    add_output_options(parser)


def list_experiments(arguments: Namespace) -> int:
    """Print the experiments that match all filters as text, CSV, JSON or YAML, newest first by
    default. Return 0.

    At most LIST_LIMIT experiments are printed unless `--limit`, `--pages` or `--all` is given, and
    `--offset` skips the first. Archived experiments are omitted without `--archived` or `--all`.
    Commands, notebooks and shells are not listed. Without matches, print only the titles, or `[]`.
    Notes on left-out experiments are printed to stderr.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example an unknown
            state.
    """
    client = connect(arguments)
    _apply_view(arguments, client)
    experiments = client.experiments(
        sort_by=arguments.sort_by or "id",
        order_by=arguments.order_by or "desc",
        on_left_out=print_note,
        columns=arguments.columns,
        filter=arguments.filter,
        workspace=arguments.workspace,
        project=arguments.project,
        metadata=arguments.metadata,
        states=split_states(arguments.state),
        has_failed_trials=True if arguments.failed_trials else None,
        user=arguments.user,
        label=arguments.label,
        name=arguments.name,
        archived=True if arguments.archived else None if arguments.all else False,
        limit=None if arguments.all else fetch_limit(arguments),
    )
    items = (experiment.data for experiment in skip_offset(experiments, arguments))
    shown = PROJECT_COLUMNS if arguments.show_project else ()
    values = [value_column(text) for text in arguments.columns]
    print_items((*EXPERIMENT_COLUMNS, *values, *shown), items, arguments)
    return 0


def _apply_view(arguments: Namespace, client: Client) -> None:
    """Complete the options of `list_experiments` by the view of `--view`, if that is given.

    `--filter` and `--column` add to the view, `--sort-by` and `--order-by` replace its order. The
    order of a view belongs to its sorted field, so `--sort-by` alone sorts in descending order.

    Raises:
        DetcloudError: the cluster has no such view, or several, or the request failed.
    """
    if arguments.view is None:
        return
    view = client.experiment_view(arguments.view)
    arguments.filter = " ".join(filter(None, (view.filter, arguments.filter)))
    arguments.columns = list(dict.fromkeys([*view.value_columns, *arguments.columns]))
    if arguments.sort_by is None:
        arguments.order_by = arguments.order_by or view.order
        arguments.sort_by = view.sort
    arguments.show_project = arguments.show_project or view.group == "project"


def add_describe_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `describe_experiments`: EXPERIMENT, repeatable, `--metrics`, `--outdir`
    and the output form (`--json`, `--yaml` or `--csv`).

    The ids are stored as `experiment_ids`, a list of lists of integers, because a word may have
    several ids.
    """
    parser.add_argument(
        "experiment_ids",
        type=parse_ids,
        nargs="+",
        metavar="EXPERIMENT",
        help="ids, separated by spaces or commas",
    )
    parser.add_argument(
        "--metrics", action="store_true", help="also show all metrics of the trials"
    )
    parser.add_argument(
        "--outdir",
        type=Path,
        metavar="DIR",
        help="write experiments.csv, trials.csv, checkpoints.csv and, with --metrics, metrics.csv",
    )
    add_output_options(parser)


def describe_experiments(arguments: Namespace) -> int:
    """Print the experiments with the given ids as text, CSV, JSON or YAML, or write tables to
    `--outdir`. Return 0.

    As JSON or YAML, a single experiment is an object, and several are a list. Text, JSON and YAML
    have the sums of the experiment's replacements, JSON and YAML under `replacements`, and the
    originals and forks of the experiment, JSON and YAML under `family`.

    With `--metrics`, all numbers that the trials reported are included: under `metrics` in JSON and
    YAML, otherwise as a second table. With `--outdir`, create the folder, replace existing tables,
    and print only the folder. As text, hints are printed to stderr.

    Raises:
        DetcloudError: no cluster is available, an experiment does not exist, or another request
            failed.
        OSError: a table cannot be written.
    """
    client = connect(arguments)
    ids = [number for part in arguments.experiment_ids for number in part]
    experiments = [client.experiment(number) for number in ids]
    if arguments.outdir is not None:
        write_tables(experiments, arguments.outdir, with_metrics=arguments.metrics)
        print(arguments.outdir)
        return 0
    if arguments.form in ("json", "yaml"):
        documents = [dict(experiment.data) for experiment in experiments]
        for document, experiment in zip(documents, experiments, strict=True):
            if (sums := _replacement_sums(experiment)) is not None:
                document["replacements"] = sums
            if (family := _read_family(experiment)) is not None:
                document["family"] = family
            if arguments.metrics:
                document["metrics"] = metric_items([experiment])
        print_value(documents[0] if len(documents) == 1 else documents, arguments.form)
        return 0
    if arguments.form == "csv":
        items = (experiment.data for experiment in experiments)
        print_items(EXPERIMENT_DETAILS, items, arguments)
    else:
        _print_records(experiments, arguments)
    if arguments.metrics:
        print_metrics(experiments, arguments)
    return 0


def _print_records(experiments: list[Experiment], arguments: Namespace) -> None:
    """Print each experiment, separated by empty lines. Hints on failures and search methods are
    printed to stderr.

    The activity of an active experiment is fetched, and the trials of a failed experiment for the
    hint.

    Raises:
        DetcloudError: a request failed.
    """
    for place, experiment in enumerate(experiments):
        if place:
            print()
        activity = _read_activity(experiment)
        columns = list(EXPERIMENT_DETAILS)
        if activity is not None:
            columns.append(EXPERIMENT_ACTIVITY)
        if experiment.data.get("use"):
            columns.append(USE)
        if experiment.data.get("ends_ms") and not experiment.has_ended:
            columns.append(EXPERIMENT_END)
        if experiment.data.get("schedule_id"):
            columns.append(EXPERIMENT_SCHEDULE)
        if has_proxy_ports(experiment.data):
            columns.append(PROXY_PORTS)
        print_record(columns, {**experiment.data, "activity": activity}, arguments)
        if (sums := _replacement_sums(experiment)) is not None:
            print_replacement_sums({**sums}, arguments)
        if (family := _read_family(experiment)) is not None:
            print_family(family, arguments)
        print_failure_hint(experiment)
        print_search_method_hint(experiment)


def _read_activity(experiment: Experiment) -> Activity | None:
    """Fetch the activity of an active experiment. Return None for other experiments, and if the
    cluster is too old.

    Raises:
        DetcloudError: the request failed.
    """
    if experiment.state != "ACTIVE":
        return None
    try:
        return experiment.activity()
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def _replacement_sums(experiment: Experiment) -> ExperimentReplacements | None:
    """Return the sums of an experiment's replacements. Return None from a cluster of an older
    version.

    Raises DetcloudError if the cluster refuses the request for another reason.
    """
    try:
        return experiment.replacements()
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def _read_family(experiment: Experiment) -> Family | None:
    """Return the family of an experiment. Return None from a cluster of an older version.

    Raises DetcloudError if the cluster refuses the request for another reason.
    """
    try:
        return experiment.family()
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def print_curves(arguments: Namespace) -> int:
    """Print the JSON document that `detcloud simulate --curves` reads, and return 0.

    The curves are fetched with a progress line on stderr. Without trials, the document's `trials`
    is empty.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or another
            request failed.
    """
    print_value(read_curves(load_experiment(arguments)))
    return 0


def read_curves(experiment: Experiment) -> RecordedCurves:
    """Return the hyperparameters, the speed and the validations of all trials of an experiment. The
    trials and metrics are fetched from the cluster with a progress line on stderr.

    Without trials, `trials` is empty. A trial without validations has no points.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    total = experiment.data["trials"]["requested"]
    trials = partial(count_text, noun="trial")
    with show_progress(f"reading experiment {experiment.id}", trials) as progress:
        return experiment.curves(lambda read: progress.update(read, total))


def add_config_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `print_config`: EXPERIMENT, and `--json` or `--yaml` for the output
    form.
    """
    add_experiment_argument(parser)
    add_output_options(parser, csv=False)


def print_config(arguments: Namespace) -> int:
    """Print the configuration of an experiment as YAML, or as JSON with `--json`. Return 0.

    The configuration has every default. Secrets are masked.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or the request
            failed.
    """
    form = "json" if arguments.form == "json" else "yaml"
    print_value(load_experiment(arguments).config, form)
    return 0


def add_wait_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `wait_for_experiment`: EXPERIMENT, `--polling-interval`, by default 1
    second, `--timeout` in seconds, by default infinite, and the output form (`--json` or `--yaml`).
    """
    add_experiment_argument(parser)
    parser.add_argument(
        "--polling-interval",
        type=parse_seconds,
        default=1.0,
        metavar="SECONDS",
        help="seconds between two polls (default: 1)",
    )
    parser.add_argument(
        "--timeout",
        type=parse_seconds,
        default=math.inf,
        metavar="SECONDS",
        help=f"stop waiting after this time, with exit code {TIMED_OUT}; the experiment continues",
    )
    add_output_options(parser, csv=False)


def wait_for_experiment(arguments: Namespace) -> int:
    """Wait until the experiment ends, and print a sentence with the final state, or the experiment
    with `--json` or `--yaml`.

    The wait has no limit without `--timeout`. As text, the reason of the end and a hint after a
    failure are printed to stderr. A progress line is drawn on stderr. Return 0 if the experiment
    completed, otherwise 1. After `--timeout`, print a sentence to stderr and return TIMED_OUT; the
    experiment continues.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or another
            request failed.
    """
    experiment = load_experiment(arguments)
    with show_progress(f"experiment {experiment.id}") as progress:
        try:
            state = experiment.wait(
                arguments.polling_interval,
                on_look=lambda seen: progress.show_wait(_state_text(seen)),
                timeout_seconds=arguments.timeout,
            )
        except TimeoutError as error:
            progress.close()
            print(f"{error}; the experiment continues", file=sys.stderr)
            return TIMED_OUT
    if arguments.form != "text":
        print_value(experiment.data, arguments.form)
    else:
        # Scripts compare the whole line, so that the reason is printed to stderr.
        print(state_sentence(f"experiment {experiment.id}", state), flush=True)
        if message := experiment.data.get("message"):
            print(f"reason: {shorten_message(message)}", file=sys.stderr)
        print_failure_hint(experiment)
    return 0 if state == "COMPLETED" else 1


def _state_text(experiment: Experiment) -> str:
    """Return the condition and the progress of an experiment, for example `running 25%
    [#####-----]`. An unknown progress is shown as 0%.
    """
    progress = experiment.data.get("progress") or 0.0
    return f"{condition_text(experiment.data)} {100 * progress:.0f}% {progress_bar(progress)}"


HANDLERS: Handlers = {
    "experiment list": Handler(add_list_arguments, list_experiments),
    "experiment describe": Handler(add_describe_arguments, describe_experiments),
    "experiment wait": Handler(add_wait_arguments, wait_for_experiment),
    "experiment curves": Handler(add_experiment_argument, print_curves),
    "experiment config": Handler(add_config_arguments, print_config),
}
