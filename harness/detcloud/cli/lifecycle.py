"""Commands that steer an experiment: from pausing it to deleting it."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace

from detcloud.cli.config import overrides_argument
from detcloud.cli.experiment import experiment_argument, experiment_of
from detcloud.cli.follow import follow_experiment
from detcloud.cli.logs import follow_first_trial
from detcloud.cli.options import add_yes_option, confirmed, foreign_option
from detcloud.cli.output import add_output_options, print_value
from detcloud.cli.progress import progress
from detcloud.cli.session import client_of
from detcloud.cli.table import cell_text
from detcloud.client import Experiment
from detcloud.http import ApiError

DELETE_POLLING_SECONDS = 0.5


def pause_arguments(parser: ArgumentParser) -> None:
    _arguments(parser)


def pause(arguments: Namespace) -> int:
    return _change(arguments, "pause")


def activate_arguments(parser: ArgumentParser) -> None:
    _arguments(parser)


def activate(arguments: Namespace) -> int:
    return _change(arguments, "activate")


def cancel_arguments(parser: ArgumentParser) -> None:
    _arguments(parser)


def cancel(arguments: Namespace) -> int:
    return _change(arguments, "cancel")


def kill_arguments(parser: ArgumentParser) -> None:
    _arguments(parser)


def kill(arguments: Namespace) -> int:
    return _change(arguments, "kill")


def archive_arguments(parser: ArgumentParser) -> None:
    _arguments(parser)


def archive(arguments: Namespace) -> int:
    return _change(arguments, "archive", "archived")


def unarchive_arguments(parser: ArgumentParser) -> None:
    _arguments(parser)


def unarchive(arguments: Namespace) -> int:
    return _change(arguments, "unarchive", "in lists again")


def continue_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    overrides_argument(parser)
    foreign_option(parser, "--config-file", instead="--config KEY=VALUE changes a field")
    follow_arguments(parser)
    add_output_options(parser, csv=False)


def continue_(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    experiment.continue_(arguments.overrides)
    return followed_or_printed(
        experiment, arguments, f"experiment {experiment.id} is {experiment.state}"
    )


def follow_arguments(parser: ArgumentParser) -> None:
    """Options of the commands that start training and may stay to watch it."""
    parser.add_argument("-f", "--follow", action="store_true", help="watch it until it ends")
    parser.add_argument(
        "--follow-first-trial", action="store_true", help="print its first trial's log as it grows"
    )


def followed_or_printed(experiment: Experiment, arguments: Namespace, text: str) -> int:
    """Prints `text`, or the experiment, and stays as long as `follow_arguments` asks."""
    stays = arguments.follow or arguments.follow_first_trial
    if arguments.form == "text":
        print(text, flush=True)
    elif not stays:
        print_value(experiment.data, arguments.form)
    if arguments.follow_first_trial:
        return follow_first_trial(experiment)
    return follow_experiment(experiment, form=arguments.form) if stays else 0


def delete_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    add_yes_option(parser)
    parser.add_argument(
        "--no-wait", action="store_true", help="do not wait until everything is deleted"
    )


def delete(arguments: Namespace) -> int:
    """Returns 0 when it is gone, 1 when its deletion failed."""
    experiment = experiment_of(arguments)
    name = cell_text(experiment.data.get("name"))
    question = f"Delete experiment {experiment.id} ({name}) with its checkpoints, logs and metrics?"
    if not confirmed(question, arguments):
        print("nothing was deleted")
        return 1
    experiment.delete()
    if arguments.no_wait:
        print(f"experiment {experiment.id} is {experiment.state}")
        return 0
    if _is_gone(experiment):
        print(f"experiment {experiment.id} was deleted")
        return 0
    message = cell_text(experiment.data.get("message"))
    print(f"experiment {experiment.id} is {experiment.state}: {message}")
    return 1


def delete_tensorboard_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)


def delete_tensorboard(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    experiment.delete_tensorboard_files()
    print(f"the files for TensorBoard of experiment {experiment.id} were deleted")
    return 0


def _is_gone(experiment: Experiment) -> bool:
    """Waits until the cluster knows it no more, or tells that the deletion failed."""
    with progress(f"experiment {experiment.id}") as shown:
        while experiment.state != "DELETE_FAILED":
            shown.tell(experiment.state)
            time.sleep(DELETE_POLLING_SECONDS)
            try:
                experiment.refresh()
            except ApiError as error:
                if error.code == "not_found":
                    return True
                raise
    return False


def _arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    add_output_options(parser, csv=False)


def _change(arguments: Namespace, verb: str, became: str | None = None) -> int:
    # One request: what the experiment was before does not matter.
    answer = client_of(arguments).post(f"/experiments/{arguments.experiment_id}/{verb}")
    if arguments.form == "text":
        print(f"experiment {answer['id']} is {became or answer['state']}")
    else:
        print_value(answer, arguments.form)
    return 0
