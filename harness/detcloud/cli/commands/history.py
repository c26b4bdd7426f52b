"""`detcloud history` and `detcloud replay`: show and verify the events of an experiment."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import add_experiment_argument, load_experiment
from detcloud.cli.rendering.output import add_output_options, print_items, print_note, print_value
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.table import Column, Item, cell_text, field_column, time_column
from detcloud.client.records import ReplayedActor
from detcloud.shared.plurals import count_text

COLUMNS = (
    time_column("Time", "time_ms"),
    field_column("Actor", "actor"),
    field_column("Revision", "revision", drop_rank=1),
    field_column("What", "text"),
    Column("Why", lambda item: "; ".join(item.get("reasons") or [])),
)


def _difference_column(name: str, title: str) -> Column:
    """Return a column with a field of an actor's first difference. The value is None for an actor
    without a difference, printed as N/A.

    Args:
        name: the field, such as `recorded`.
        title: the text above the column.
    """
    return Column(title, lambda item: (item["difference"] or {}).get(name))


REPLAY_COLUMNS = (
    field_column("Actor", "actor"),
    field_column("Entries", "entries"),
    _difference_column("revision", "Revision"),
    _difference_column("message", "Message"),
    _difference_column("field", "Field"),
    _difference_column("recorded", "Recorded"),
    _difference_column("replayed", "Replayed"),
)


def add_history_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `show_history`: EXPERIMENT, `--actor`, None by default, and the output
    form (`--json`, `--yaml` or `--csv`).
    """
    add_experiment_argument(parser)
    parser.add_argument(
        "--actor",
        metavar="ACTOR",
        help="only events of this actor, such as experiment#3 or trial#7",
    )
    add_output_options(parser)


def show_history(arguments: Namespace) -> int:
    """Print the events of an experiment with reasons, oldest first, as text, CSV, JSON or YAML.
    Return 0.

    The events of the trials are included unless the experiment has too many trials for the cluster
    to merge. In this case, print a note on stderr. With `--actor`, print only the events of the
    experiment or of a single trial.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request. The cluster
            refuses an actor without history in the experiment.
    """
    experiment = load_experiment(arguments)
    entries: list[Item] = [{**entry} for entry in experiment.history(arguments.actor)]
    print_items(COLUMNS, entries, arguments)
    trials = (experiment.data.get("trials") or {}).get("requested", 0)
    has_trials = any(entry["actor"].startswith("trial#") for entry in entries)
    if arguments.actor is None and trials and not has_trials:
        print_note(
            f"the events of {count_text(trials, 'trial')} are left out, because the experiment has"
            " so many; add `--actor trial#ID` for the events of a trial"
        )
    return 0


def add_replay_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `replay_experiment`: EXPERIMENT and the output form (`--json`, `--yaml`
    or `--csv`).
    """
    add_experiment_argument(parser)
    add_output_options(parser)


def replay_experiment(arguments: Namespace) -> int:
    """Replay the journals of an experiment's actors, and print the differences from the recorded
    state. Return 1 if an actor differs, otherwise 0.

    The cluster replays, and nothing is changed. A progress line is drawn on stderr. As text, print
    a table of the actors that differ, if any, and a summary. Other forms have all actors and no
    summary.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or another
            request failed.
    """
    experiment = load_experiment(arguments)
    # The actors are the experiment and its trials.
    expected = 1 + (experiment.data.get("trials") or {}).get("requested", 0)
    actors: list[ReplayedActor] = []
    with show_progress(f"experiment {experiment.id}", lambda n: count_text(n, "actor")) as progress:
        for actor in experiment.replay():
            actors.append(actor)
            progress.update(len(actors), max(expected, len(actors)))
    different = [actor for actor in actors if actor["difference"] is not None]
    if arguments.form in ("json", "yaml"):
        print_value(actors, arguments.form)
    elif arguments.form == "csv":
        print_items(REPLAY_COLUMNS, [{**actor} for actor in actors], arguments)
    else:
        if different:
            print_items(REPLAY_COLUMNS, [{**actor} for actor in different], arguments)
        print(_summary_line(actors, different))
    return 1 if different else 0


def _summary_line(actors: list[ReplayedActor], different: list[ReplayedActor]) -> str:
    """Return a sentence with the number of replayed actors and journal entries, and the result.

    The sentence names each actor that differs.
    """
    entries = sum(actor["entries"] for actor in actors)
    journal = count_text(entries, "journal entry", "journal entries")
    amount = f"{count_text(len(actors), 'actor')}, {journal}"
    if not different:
        return f"{amount}: all match the recorded state"
    names = ", ".join(cell_text(actor["actor"]) for actor in different)
    differ = count_text(len(different), "actor differs", "actors differ")
    return f"{amount}: {differ} from the recorded state ({names})"


HANDLERS: Handlers = {
    "experiment history": Handler(add_history_arguments, show_history),
    "experiment replay": Handler(add_replay_arguments, replay_experiment),
}
