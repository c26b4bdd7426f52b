"""Commands that change the state of an experiment, such as `detcloud pause` and `delete`."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace

from detcloud.cli.commands.follow import follow_experiment
from detcloud.cli.commands.logs import follow_first_trial
from detcloud.cli.framework import polling
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import (
    add_follow_options,
    add_overrides_option,
    add_replaced_option,
    add_yes_option,
    confirm,
)
from detcloud.cli.framework.session import add_experiment_argument, connect, load_experiment
from detcloud.cli.rendering.hints import print_page_link
from detcloud.cli.rendering.output import add_output_options, print_value
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import collection_text
from detcloud.cli.rendering.state_sentences import state_sentence
from detcloud.cli.rendering.table import cell_text
from detcloud.client import Experiment
from detcloud.shared.http import ApiError
from detcloud.shared.plurals import count_text


def pause_experiment(arguments: Namespace) -> int:
    """Request the pause of an experiment, print the new state, and return 0. The trials store
    checkpoints and release their slots.

    The command does not wait for the trials. With `--json` or `--yaml`, print the experiment's
    fields.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example for an ended
            experiment.
    """
    return _change_state(arguments, "pause")


def activate_experiment(arguments: Namespace) -> int:
    """Resume a paused experiment, print the new state, and return 0. The trials continue from their
    latest checkpoints.

    With `--json` or `--yaml`, print the experiment's fields.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example for an ended
            experiment.
    """
    return _change_state(arguments, "activate")


def cancel_experiment(arguments: Namespace) -> int:
    """Request the end of an experiment, print the new state, and return 0. The trials store
    checkpoints before the end.

    The command does not wait for the trials. Nothing changes for an experiment that is ending or
    has ended. With `--json` or `--yaml`, print the experiment's fields.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    return _change_state(arguments, "cancel")


def kill_experiment(arguments: Namespace) -> int:
    """End an experiment, print the new state, and return 0. The trials have at most 15 seconds to
    store a checkpoint.

    The user is not asked, and the command does not wait. Nothing changes for an experiment that has
    ended. With `--json` or `--yaml`, print the experiment's fields.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    return _change_state(arguments, "kill")


def archive_experiment(arguments: Namespace) -> int:
    """Hide an ended experiment from lists, print a confirmation, and return 0. With `--json` or
    `--yaml`, print the experiment's fields.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example because the
            experiment has not ended.
    """
    return _change_state(arguments, "archive", "archived")


def unarchive_experiment(arguments: Namespace) -> int:
    """Show an archived experiment in lists again, print a confirmation, and return 0. With `--json`
    or `--yaml`, print the experiment's fields.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    return _change_state(arguments, "unarchive", "shown in lists again")


def add_continue_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `continue_experiment`: EXPERIMENT, `--config`, options for following,
    and the output form (`--json` or `--yaml`). `--config-file` of Determined ends with a usage
    error.
    """
    add_experiment_argument(parser)
    add_overrides_option(parser)
    add_replaced_option(parser, "--config-file", instead="--config KEY=VALUE changes a field")
    add_follow_options(parser)
    add_output_options(parser, csv=False)


def continue_experiment(arguments: Namespace) -> int:
    """Continue an ended experiment with changed settings, print the new state, and follow the
    experiment if requested.

    Return 0, or the exit code of following. With `--json` or `--yaml`, print the experiment's
    fields, or after following the ended experiment's.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example because the
            experiment has not ended or an override is not allowed.
    """
    experiment = load_experiment(arguments)
    experiment.continue_(arguments.overrides)
    sentence = state_sentence(f"experiment {experiment.id}", experiment.state)
    return print_or_follow(experiment, arguments, sentence)


def print_or_follow(experiment: Experiment, arguments: Namespace, text: str) -> int:
    """Print `text` or the experiment, then follow the experiment or the first trial if requested.

    With `--json` or `--yaml`, the experiment is printed instead of `text`, and not before
    following. As text, the address on the web page is printed to stderr, as `print_page_link` does,
    and a notice precedes the log of a first trial. Following has no time limit. Return 0, or the
    exit code of following.

    Args:
        arguments: the options of `add_follow_options` and `add_output_options`.
        text: the sentence to print as text.

    Raises:
        DetcloudError: a request of following failed.
    """
    stays = arguments.follow or arguments.follow_first_trial
    if arguments.form == "text":
        print(text, flush=True)
        print_page_link(arguments.client, f"experiments/{experiment.id}")
    elif not stays:
        print_value(experiment.data, arguments.form)
    if arguments.follow_first_trial:
        if arguments.form == "text":
            print(
                f"printing the log of the first trial; `detcloud follow {experiment.id}` watches "
                "the states and metrics of all trials",
                file=sys.stderr,
            )
        return follow_first_trial(experiment)
    return follow_experiment(experiment, form=arguments.form) if stays else 0


def add_delete_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `delete_experiment`: EXPERIMENT, `--yes`, `--no-wait` and
    `--dry-run`.
    """
    add_experiment_argument(parser)
    add_yes_option(parser)
    parser.add_argument(
        "--no-wait", action="store_true", help="do not wait for the deletion to finish"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only show how many checkpoints would be deleted, and how long it takes",
    )


def delete_experiment(arguments: Namespace) -> int:
    """Delete an experiment after confirmation, and wait until the cluster has removed the
    experiment. Print the result.

    The wait has no limit. Checkpoints, logs and metrics are deleted too. Return 0 after the
    deletion, or at once with `--no-wait`. Return 1 if the user declined or the deletion failed.
    With `--dry-run`, delete nothing and return the code of `_preview_deletion`.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or refuses
            because the experiment has not ended or a checkpoint must be kept. Or stdin is not a
            terminal and `--yes` is missing.
    """
    experiment = load_experiment(arguments)
    if arguments.dry_run:
        return _preview_deletion(experiment)
    name = cell_text(experiment.data.get("name"))
    question = f"Delete experiment {experiment.id} ({name}) with its checkpoints, logs and metrics?"
    if not confirm(question, arguments):
        print("nothing was deleted")
        return 1
    experiment.delete()
    if arguments.no_wait:
        print(state_sentence(f"experiment {experiment.id}", experiment.state))
        return 0
    if _wait_until_gone(experiment):
        print(f"experiment {experiment.id} was deleted")
        return 0
    message = cell_text(experiment.data.get("message"))
    print(f"{state_sentence(f'experiment {experiment.id}', experiment.state)}: {message}")
    return 1


def _preview_deletion(experiment: Experiment) -> int:
    """Print the amount of data that a deletion of the experiment would delete. Nothing is deleted.

    The cluster computes the amount. Return 1 if the cluster would refuse the deletion, otherwise 0.
    The reasons of a refusal are printed to stdout.

    Raises:
        DetcloudError: the request failed.
    """
    preview = experiment.preview_deletion()
    print(f"to delete: {collection_text(preview)}, and the logs and metrics")
    if not experiment.has_ended:
        sentence = state_sentence(f"experiment {experiment.id}", experiment.state)
        print(f"{sentence}; only ended experiments can be deleted")
    if preview["keep_count"]:
        kept = count_text(preview["keep_count"], "checkpoint")
        print(f"{kept} must be kept for other objects; the experiment cannot be deleted")
    return int(bool(preview["keep_count"]) or not experiment.has_ended)


def delete_tensorboard_files(arguments: Namespace) -> int:
    """Delete the TensorBoard files of all trials of an ended experiment, print a confirmation, and
    return 0. The user is not asked.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example because the
            experiment has not ended.
    """
    experiment = load_experiment(arguments)
    experiment.delete_tensorboard_files()
    print(f"the TensorBoard files of experiment {experiment.id} were deleted")
    return 0


def _wait_until_gone(experiment: Experiment) -> bool:
    """Wait without a time limit until the cluster has removed the experiment, and return True.
    Return False if the deletion failed.

    The experiment's fields are fetched repeatedly, with a progress line on stderr.

    Raises:
        DetcloudError: a request failed for a reason other than the removal.
    """
    with show_progress(f"experiment {experiment.id}") as progress:
        while experiment.state != "DELETE_FAILED":
            progress.show_wait(experiment.state)
            time.sleep(polling.TIMES.deletion)
            try:
                experiment.refresh()
            except ApiError as error:
                if error.code == "not_found":
                    return True
                raise
    return False


def add_state_arguments(parser: ArgumentParser) -> None:
    """Add the argument EXPERIMENT, stored as `experiment_id`, and `--json` and `--yaml`."""
    add_experiment_argument(parser)
    add_output_options(parser, csv=False)


def request_state_change(
    arguments: Namespace, noun: str, path: str, outcome: str | None = None
) -> int:
    """Post to `path`, print the new state of the experiment or trial, and return 0. With `--json`
    or `--yaml`, print the answer's fields instead.

    Args:
        noun: `experiment` or `trial`.
        path: the path of the API's request, such as `/trials/7/kill`.
        outcome: words for the sentence in place of the state, such as `archived`; None for the
            state.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    answer = connect(arguments).post(path)
    subject = f"{noun} {answer['id']}"
    if arguments.form == "text":
        print(f"{subject} is {outcome}" if outcome else state_sentence(subject, answer["state"]))
    else:
        print_value(answer, arguments.form)
    return 0


def _change_state(arguments: Namespace, verb: str, outcome: str | None = None) -> int:
    """Post a command, for example `pause`, to the experiment of `experiment_id`. Print the new
    state, and return 0.

    With `--json` or `--yaml`, print the experiment's fields instead.

    Args:
        verb: the last part of the request's path.
        outcome: words for the sentence in place of the state, such as `archived`; None for the
            state.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    path = f"/experiments/{arguments.experiment_id}/{verb}"
    return request_state_change(arguments, "experiment", path, outcome)


HANDLERS: Handlers = {
    "experiment pause": Handler(add_state_arguments, pause_experiment),
    "experiment activate": Handler(add_state_arguments, activate_experiment),
    "experiment cancel": Handler(add_state_arguments, cancel_experiment),
    "experiment kill": Handler(add_state_arguments, kill_experiment),
    "experiment archive": Handler(add_state_arguments, archive_experiment),
    "experiment unarchive": Handler(add_state_arguments, unarchive_experiment),
    "experiment continue": Handler(add_continue_arguments, continue_experiment),
    "experiment delete": Handler(add_delete_arguments, delete_experiment),
    "experiment delete-tb-files": Handler(add_experiment_argument, delete_tensorboard_files),
}
