"""What happened to an experiment, and whether it would be decided the same way again."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.experiment import experiment_argument, experiment_of
from detcloud.cli.output import add_output_options, print_items, print_value
from detcloud.cli.progress import progress
from detcloud.cli.table import Column, Item, cell_text, field, time_column
from detcloud.cli.terminal import counted
from detcloud.client.records import ReplayedActor

COLUMNS = (
    time_column("Time", "time_ms"),
    field("Actor", "actor"),
    field("Revision", "revision", spare=1),
    field("What", "text"),
    Column("Why", lambda item: "; ".join(item.get("reasons") or [])),
)


def _difference(name: str, title: str) -> Column:
    return Column(title, lambda item: (item["difference"] or {}).get(name))


REPLAY_COLUMNS = (
    field("Actor", "actor"),
    field("Entries", "entries"),
    _difference("revision", "Revision"),
    _difference("message", "Message"),
    _difference("field", "Field"),
    _difference("recorded", "Recorded"),
    _difference("replayed", "Replayed"),
)


def history_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument(
        "--actor", metavar="ACTOR", help="only this one's, such as experiment#3 or trial#7"
    )
    add_output_options(parser)


def history(arguments: Namespace) -> int:
    entries: list[Item] = [{**entry} for entry in experiment_of(arguments).history(arguments.actor)]
    print_items(COLUMNS, entries, arguments)
    return 0


def replay_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    add_output_options(parser)


def replay(arguments: Namespace) -> int:
    """Returns 0 when every actor came out as recorded, else 1."""
    experiment = experiment_of(arguments)
    # The experiment itself and each of its trials.
    expected = 1 + (experiment.data.get("trials") or {}).get("requested", 0)
    actors: list[ReplayedActor] = []
    with progress(f"experiment {experiment.id}", lambda n: counted(n, "actor")) as shown:
        for actor in experiment.replay():
            actors.append(actor)
            shown.update(len(actors), max(expected, len(actors)))
    different = [actor for actor in actors if actor["difference"] is not None]
    if arguments.form in ("json", "yaml"):
        print_value(actors, arguments.form)
    elif arguments.form == "csv":
        print_items(REPLAY_COLUMNS, [{**actor} for actor in actors], arguments)
    else:
        if different:
            print_items(REPLAY_COLUMNS, [{**actor} for actor in different], arguments)
        print(_verdict(actors, different))
    return 1 if different else 0


def _verdict(actors: list[ReplayedActor], different: list[ReplayedActor]) -> str:
    entries = sum(actor["entries"] for actor in actors)
    read = f"{counted(len(actors), 'actor')}, {entries} journal entries"
    if not different:
        return f"{read}: all as recorded"
    names = ", ".join(cell_text(actor["actor"]) for actor in different)
    return f"{read}: {len(different)} not as recorded ({names})"
