"""`detcloud experiment label` and `set`: change labels, names, limits and retention."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.argument_types import (
    parse_cost_limit,
    parse_count,
    parse_priority,
    parse_slot_limit,
    parse_weight,
)
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.metadata_values import metadata_handler
from detcloud.cli.framework.options import add_yes_option, confirm
from detcloud.cli.framework.session import add_experiment_argument, load_experiment
from detcloud.cli.rendering.columns import CHECKPOINT_COLUMNS
from detcloud.cli.rendering.output import add_output_options, print_items, print_value
from detcloud.cli.rendering.quantities import (
    bytes_text,
    collection_text,
    dollars_text,
)
from detcloud.cli.rendering.table import cell_text
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client import Experiment
from detcloud.client.records import CollectionPreview
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text

PREVIEW_LIMIT = 20
GC_OPTIONS = {
    "save_experiment_best": "best of the experiment",
    "save_trial_best": "best of each trial",
    "save_trial_latest": "latest of each trial",
}


def add_label_arguments(parser: ArgumentParser) -> None:
    """Add the required arguments EXPERIMENT and LABEL. Labels are stored as the list `labels`."""
    add_experiment_argument(parser)
    parser.add_argument(
        "labels",
        nargs="+",
        metavar="LABEL",
        help="a label, by which `detcloud list` finds the experiment",
    )


def add_labels(arguments: Namespace) -> int:
    """Add labels to an experiment, print a sentence with all labels, and return 0. Labels that the
    experiment has are not added again.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or the cluster
            refuses the labels.
    """
    experiment = load_experiment(arguments)
    added = [label for label in arguments.labels if label not in experiment.labels]
    return _set_labels(experiment, [*experiment.labels, *dict.fromkeys(added)])


def remove_labels(arguments: Namespace) -> int:
    """Remove labels from an experiment, print a sentence with the remaining labels, and return 0.
    Without remaining labels, the sentence has `none`.

    Nothing is removed if a label is missing.

    Raises:
        DetcloudError: the experiment does not have one of the labels, no cluster is available, or a
            request failed.
    """
    experiment = load_experiment(arguments)
    missing = [label for label in arguments.labels if label not in experiment.labels]
    if missing:
        raise DetcloudError(
            f"experiment {experiment.id} has no label {', '.join(missing)}; "
            f"it has {_labels_text(experiment.labels)}"
        )
    rest = [label for label in experiment.labels if label not in arguments.labels]
    return _set_labels(experiment, rest)


def add_name_arguments(parser: ArgumentParser) -> None:
    """Add the required arguments EXPERIMENT and NAME, the new name."""
    add_experiment_argument(parser)
    parser.add_argument("name", metavar="NAME", help="the new name")


def set_name(arguments: Namespace) -> int:
    """Rename an experiment in the cluster, print the new name, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or the cluster
            refuses the name.
    """
    experiment = load_experiment(arguments)
    experiment.set(name=arguments.name)
    print(f"experiment {experiment.id} is now named {cell_text(experiment.name)}")
    return 0


def add_description_arguments(parser: ArgumentParser) -> None:
    """Add the required arguments EXPERIMENT and TEXT, stored as `description`."""
    add_experiment_argument(parser)
    parser.add_argument("description", metavar="TEXT", help="the new description")


def set_description(arguments: Namespace) -> int:
    """Replace the description of an experiment in the cluster, print a confirmation, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or the cluster
            refuses the text.
    """
    experiment = load_experiment(arguments)
    experiment.set(description=arguments.description)
    print(f"the description of experiment {experiment.id} was set")
    return 0


def add_max_slots_arguments(parser: ArgumentParser) -> None:
    """Add the required arguments EXPERIMENT and SLOTS, parsed by `parse_slot_limit` and stored as
    `max_slots`.
    """
    add_experiment_argument(parser)
    parser.add_argument(
        "max_slots",
        type=parse_slot_limit,
        metavar="SLOTS",
        help="the maximum number of slots at the same time, or `none` for no limit",
    )


def set_max_slots(arguments: Namespace) -> int:
    """Set the limit of slots of an experiment, or with `none` remove the limit. Print the new
    limit, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or the cluster
            refuses the change.
    """
    experiment = load_experiment(arguments)
    experiment.set(max_slots=arguments.max_slots)
    limit = experiment.max_slots
    most = "as many slots as it needs" if limit is None else f"at most {count_text(limit, 'slot')}"
    print(f"experiment {experiment.id} may have {most}")
    return 0


def add_max_cost_arguments(parser: ArgumentParser) -> None:
    """Add the required arguments EXPERIMENT and AMOUNT, parsed by `parse_cost_limit` and stored as
    `max_cost`.
    """
    add_experiment_argument(parser)
    parser.add_argument(
        "max_cost",
        type=parse_cost_limit,
        metavar="AMOUNT",
        help="the limit in dollars, or `none` for no limit",
    )


def set_max_cost(arguments: Namespace) -> int:
    """Set the cost limit of an experiment in dollars, or with `none` remove the limit. Print the
    new limit, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or the cluster
            refuses the change.
    """
    experiment = load_experiment(arguments)
    experiment.set(max_cost=arguments.max_cost)
    limit = experiment.max_cost
    most = "as much as it needs" if limit is None else f"at most {dollars_text(limit)}"
    print(f"experiment {experiment.id} may cost {most}")
    return 0


def add_weight_arguments(parser: ArgumentParser) -> None:
    """Add the required arguments EXPERIMENT and WEIGHT, parsed by `parse_weight`."""
    add_experiment_argument(parser)
    parser.add_argument(
        "weight", type=parse_weight, metavar="WEIGHT", help="a number greater than 0"
    )


def set_weight(arguments: Namespace) -> int:
    """Change the fair-share weight of an experiment, print the new weight, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or the cluster
            refuses the weight, for example 0.
    """
    experiment = load_experiment(arguments)
    experiment.set_weight(arguments.weight)
    print(f"experiment {experiment.id} has weight {cell_text(experiment.weight)}")
    return 0


def add_priority_arguments(parser: ArgumentParser) -> None:
    """Add the required arguments EXPERIMENT and PRIORITY, parsed by `parse_priority`."""
    add_experiment_argument(parser)
    parser.add_argument(
        "priority", type=parse_priority, metavar="PRIORITY", help="1 to 99, 1 being the first"
    )


def set_priority(arguments: Namespace) -> int:
    """Change the priority of an experiment in a pool with the priority scheduler, print the new
    priority, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or the cluster
            refuses, for example a priority outside 1 to 99.
    """
    experiment = load_experiment(arguments)
    experiment.set_priority(arguments.priority)
    print(f"experiment {experiment.id} has priority {experiment.priority}")
    return 0


def add_gc_policy_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `set_gc_policy`: EXPERIMENT, a count for each of GC_OPTIONS, None by
    default, `--yes`, `--preview`, and the output form (`--json` or `--yaml`).
    """
    add_experiment_argument(parser)
    for option, which in GC_OPTIONS.items():
        parser.add_argument(
            f"--{option.replace('_', '-')}",
            type=parse_count,
            metavar="N",
            help=f"keep this many checkpoints, the {which} (default: no change)",
        )
    add_yes_option(parser)
    parser.add_argument(
        "--preview",
        "--dry-run",
        dest="preview",
        action="store_true",
        help="only show what would be deleted, and how long it takes",
    )
    add_output_options(parser, csv=False)


def set_gc_policy(arguments: Namespace) -> int:
    """Change how many checkpoints the experiment keeps, after a preview and confirmation.

    The preview is printed first: a table and totals, or with `--json` or `--yaml` all fields. The
    cluster deletes other checkpoints. The user is asked only if checkpoints would be deleted and
    `--yes` is missing. Options without a number change nothing. Return 1 if the user declined,
    otherwise 0. With `--preview`, change and ask nothing, and return 0.

    Raises:
        DetcloudError: neither `--preview` nor a number was given, or no confirmation is possible
            because stdin is not a terminal. Or no cluster is available, or a request failed.
    """
    counts = {option: getattr(arguments, option) for option in GC_OPTIONS}
    if not arguments.preview and all(number is None for number in counts.values()):
        raise DetcloudError(
            "nothing to change; set how many to keep with --save-experiment-best, "
            "--save-trial-best or --save-trial-latest"
        )
    experiment = load_experiment(arguments)
    preview = experiment.preview_collection(**counts)
    if arguments.form != "text":
        print_value(preview, arguments.form)
    else:
        _print_preview(preview, arguments)
    if arguments.preview:
        return 0
    deleted = count_text(preview["delete_count"], "checkpoint")
    if preview["delete_count"] and not confirm(f"Delete {deleted}?", arguments):
        print("nothing was changed")
        return 1
    experiment.set(**counts)
    if arguments.form == "text":
        print(f"experiment {experiment.id} deletes {deleted}")
    return 0


def _set_labels(experiment: Experiment, labels: list[str]) -> int:
    """Replace the labels of an experiment in the cluster, print a sentence with the new labels, and
    return 0. Without labels, the sentence has `none`.

    Raises:
        DetcloudError: the cluster refuses the labels or does not answer.
    """
    experiment.set(labels=labels)
    print(f"experiment {experiment.id} has the labels {_labels_text(experiment.labels)}")
    return 0


def _labels_text(labels: list[str]) -> str:
    """Return labels joined by commas, with control characters replaced. Return `none` without
    labels.
    """
    return sanitize(", ".join(labels)) or "none"


def _print_preview(preview: CollectionPreview, arguments: Namespace) -> None:
    """Print a table of at most PREVIEW_LIMIT checkpoints that would be deleted, the number of
    further checkpoints, and the totals. The table is omitted if nothing would be deleted.
    """
    checkpoints = preview["delete"][:PREVIEW_LIMIT]
    if checkpoints:
        print_items(CHECKPOINT_COLUMNS, checkpoints, arguments)
    if preview["delete_count"] > len(checkpoints):
        more = count_text(preview["delete_count"] - len(checkpoints), "more checkpoint")
        print(f" ... and {more}")
    print(
        f"to delete: {collection_text(preview)}; "
        f"to keep: {count_text(preview['keep_count'], 'checkpoint')}, "
        f"{bytes_text(preview['keep_bytes'])}"
    )


HANDLERS: Handlers = {
    "experiment label add": Handler(add_label_arguments, add_labels),
    "experiment label remove": Handler(add_label_arguments, remove_labels),
    "experiment set metadata": metadata_handler(
        "experiment", "id", add_experiment_argument, load_experiment, revision="revision"
    ),
    "experiment set name": Handler(add_name_arguments, set_name),
    "experiment set description": Handler(add_description_arguments, set_description),
    "experiment set max-slots": Handler(add_max_slots_arguments, set_max_slots),
    "experiment set max-cost": Handler(add_max_cost_arguments, set_max_cost),
    "experiment set weight": Handler(add_weight_arguments, set_weight),
    "experiment set priority": Handler(add_priority_arguments, set_priority),
    "experiment set gc-policy": Handler(add_gc_policy_arguments, set_gc_policy),
}
