"""Commands that change what an experiment is called, may use and keeps."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from detcloud import DetcloudError
from detcloud.cli.checkpoint import COLUMNS as CHECKPOINT_COLUMNS
from detcloud.cli.cost import amount, money
from detcloud.cli.experiment import experiment_argument, experiment_of
from detcloud.cli.job import priority_of, weight_of
from detcloud.cli.options import add_yes_option, confirmed, count
from detcloud.cli.output import add_output_options, print_items, print_value
from detcloud.cli.table import cell_text
from detcloud.cli.terminal import bytes_text, clean, counted
from detcloud.client import Experiment
from detcloud.client.records import CollectionPreview

PREVIEW_SHOWN = 20
GC_OPTIONS = {
    "save_experiment_best": "best of the experiment",
    "save_trial_best": "best of each trial",
    "save_trial_latest": "latest of each trial",
}


def label_add_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument("labels", nargs="+", metavar="LABEL", help="a word to find it by")


def label_add(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    added = [label for label in arguments.labels if label not in experiment.labels]
    return _relabelled(experiment, [*experiment.labels, *dict.fromkeys(added)])


def label_remove_arguments(parser: ArgumentParser) -> None:
    label_add_arguments(parser)


def label_remove(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    missing = [label for label in arguments.labels if label not in experiment.labels]
    if missing:
        raise DetcloudError(
            f"experiment {experiment.id} has no label {', '.join(missing)}; "
            f"it has {_listed(experiment.labels)}"
        )
    left = [label for label in experiment.labels if label not in arguments.labels]
    return _relabelled(experiment, left)


def name_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument("name", metavar="NAME", help="the new name")


def name(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    experiment.set(name=arguments.name)
    print(f"experiment {experiment.id} is called {cell_text(experiment.name)}")
    return 0


def description_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument("description", metavar="TEXT", help="the new description")


def description(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    experiment.set(description=arguments.description)
    print(f"the description of experiment {experiment.id} was set")
    return 0


def max_slots_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument(
        "max_slots", type=_slots, metavar="SLOTS", help="how many at once, or `none` for no limit"
    )


def max_slots(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    experiment.set(max_slots=arguments.max_slots)
    limit = experiment.max_slots
    most = "as many slots as it needs" if limit is None else f"at most {counted(limit, 'slot')}"
    print(f"experiment {experiment.id} may have {most}")
    return 0


def max_cost_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument(
        "max_cost", type=_limit, metavar="AMOUNT", help="dollars, or `none` for no limit"
    )


def max_cost(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    experiment.set(max_cost=arguments.max_cost)
    limit = experiment.max_cost
    most = "as much as it needs" if limit is None else f"at most {money(limit)}"
    print(f"experiment {experiment.id} may cost {most}")
    return 0


def weight_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument(
        "weight", type=weight_of, metavar="WEIGHT", help="its share: a number above 0"
    )


def weight(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    experiment.set_weight(arguments.weight)
    print(f"experiment {experiment.id} has weight {cell_text(experiment.weight)}")
    return 0


def priority_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument(
        "priority", type=priority_of, metavar="PRIORITY", help="1 to 99, 1 being the first"
    )


def priority(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    experiment.set_priority(arguments.priority)
    print(f"experiment {experiment.id} has priority {experiment.priority}")
    return 0


def gc_policy_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    for option, which in GC_OPTIONS.items():
        parser.add_argument(
            f"--{option.replace('_', '-')}",
            type=count,
            metavar="N",
            help=f"keep so many checkpoints, the {which} (default: as it is)",
        )
    add_yes_option(parser)
    parser.add_argument("--preview", action="store_true", help="show what it would delete, only")
    add_output_options(parser, csv=False)


def gc_policy(arguments: Namespace) -> int:
    """Returns 0 when it was changed or only previewed, 1 when the user said no."""
    asked = {option: getattr(arguments, option) for option in GC_OPTIONS}
    if not arguments.preview and all(number is None for number in asked.values()):
        raise DetcloudError(
            "say how many to keep: --save-experiment-best, --save-trial-best or --save-trial-latest"
        )
    experiment = experiment_of(arguments)
    preview = experiment.preview_collection(**asked)
    if arguments.form != "text":
        print_value(preview, arguments.form)
    else:
        _print_preview(preview, arguments)
    if arguments.preview:
        return 0
    deleted = counted(preview["delete_count"], "checkpoint")
    if preview["delete_count"] and not confirmed(f"Delete {deleted}?", arguments):
        print("nothing was changed")
        return 1
    experiment.set(**asked)
    if arguments.form == "text":
        print(f"experiment {experiment.id} deletes {deleted}")
    return 0


def _relabelled(experiment: Experiment, labels: list[str]) -> int:
    experiment.set(labels=labels)
    print(f"experiment {experiment.id} has the labels {_listed(experiment.labels)}")
    return 0


def _listed(labels: list[str]) -> str:
    return clean(", ".join(labels)) or "none"


def _limit(text: str) -> float | None:
    return None if text.lower() in ("none", "null") else amount(text)


def _slots(text: str) -> int | None:
    if text.lower() in ("none", "null"):
        return None
    try:
        return count(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{text!r} is no number of slots; expected such as 8, or none"
        ) from None


def _print_preview(preview: CollectionPreview, arguments: Namespace) -> None:
    shown = preview["delete"][:PREVIEW_SHOWN]
    if shown:
        print_items(CHECKPOINT_COLUMNS, shown, arguments)
    if preview["delete_count"] > len(shown):
        print(f" ... and {preview['delete_count'] - len(shown)} more")
    print(
        f"to delete: {counted(preview['delete_count'], 'checkpoint')}, "
        f"{bytes_text(preview['delete_bytes'])}; "
        f"to keep: {preview['keep_count']}, {bytes_text(preview['keep_bytes'])}"
    )
