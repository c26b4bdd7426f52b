"""Downloads of checkpoints and model code of an experiment or a trial."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud.cli.commands.checkpoint_transfer import add_download_options, fetch_checkpoint
from detcloud.cli.framework.argument_types import parse_boolean, parse_count, parse_uuid_prefix
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_output_dir_option, add_quiet_option
from detcloud.cli.framework.session import (
    add_experiment_argument,
    add_trial_argument,
    load_experiment,
    load_trial,
)
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.client import Checkpoint, Client, Trial
from detcloud.client.ranking import rank_checkpoints
from detcloud.shared.errors import DetcloudError


def add_experiment_download_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `download_best_checkpoints`: EXPERIMENT, `--output-dir`, `--top-n`, by
    default 1, the order of checkpoints and `--quiet`.
    """
    add_experiment_argument(parser)
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        default=Path("checkpoints"),
        metavar="DIR",
        help="the folder to create DIR/UUID in (default: checkpoints)",
    )
    parser.add_argument(
        "--top-n",
        type=parse_count,
        default=1,
        metavar="N",
        help="how many checkpoints to download, best first (default: 1)",
    )
    _add_order_options(parser)
    add_quiet_option(parser)


def download_best_checkpoints(arguments: Namespace) -> int:
    """Download the best stored checkpoints of an experiment into DIR/UUID, and return 0. Print each
    folder unless `--quiet` is given.

    DIR is `--output-dir`, by default `checkpoints`. By default, the single best checkpoint by the
    searcher's metric is downloaded. `--sort-by` and `--smaller-is-better` change the ranking. If
    fewer than `--top-n` checkpoints have the metric, all of these are downloaded. If a download
    fails, earlier folders remain.

    Raises:
        DetcloudError: no stored checkpoint has a validation metric, `--top-n` is 0, or `--sort-by`
            needs `--smaller-is-better`. Or a folder exists or cannot be written, no cluster is
            available, or a request failed.
    """
    experiment = load_experiment(arguments)
    best = experiment.best_checkpoints(arguments.sort_by, arguments.smaller_is_better)
    best = best[: arguments.top_n]
    if not best:
        raise DetcloudError(
            f"experiment {experiment.id} has no stored checkpoint with a validation"
        )
    for checkpoint in best:
        fetch_checkpoint(checkpoint, arguments.output_dir / checkpoint.uuid, quiet=arguments.quiet)
    return 0


def add_trial_download_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `download_trial_checkpoint`: TRIAL, one of `--best`, `--latest` and
    `--uuid`, the order of checkpoints, `--output-dir` and `--quiet`.
    """
    add_trial_argument(parser)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--best", action="store_true", help="the best checkpoint")
    group.add_argument("--latest", action="store_true", help="the latest checkpoint")
    group.add_argument("--uuid", type=parse_uuid_prefix, help="the checkpoint with this UUID")
    _add_order_options(parser)
    add_download_options(parser)


def download_trial_checkpoint(arguments: Namespace) -> int:
    """Download the selected checkpoint of a trial, and print the folder unless `--quiet` is given.
    Return 0.

    `--best`, `--latest` or `--uuid` selects the checkpoint. The default folder is checkpoints/UUID.

    Raises:
        DetcloudError: the trial does not have the checkpoint, `--sort-by` needs
            `--smaller-is-better`, or the folder exists or cannot be written. Or no cluster is
            available, or a request failed.
    """
    trial = load_trial(arguments)
    fetch_checkpoint(
        _select_checkpoint(trial, arguments), arguments.output_dir, quiet=arguments.quiet
    )
    return 0


def add_model_def_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `download_model_def`: EXPERIMENT, `--output-dir`, None by default, and
    `--quiet`.
    """
    add_experiment_argument(parser)
    add_output_dir_option(parser, "experiment_ID_model_def")
    add_quiet_option(parser)


def download_model_def(arguments: Namespace) -> int:
    """Download and unpack the model code of an experiment, and print the folder unless `--quiet` is
    given. Return 0.

    The default folder is experiment_ID_model_def. A progress line is drawn on stderr.

    Raises:
        DetcloudError: the folder exists or cannot be written, the code is damaged, no cluster is
            available, or a request failed.
    """
    experiment = load_experiment(arguments)
    destination = arguments.output_dir or Path(f"experiment_{experiment.id}_model_def")
    with show_progress("model code", bytes_text) as progress:
        experiment.download_model_def(destination, progress.update)
    if not arguments.quiet:
        print(destination)
    return 0


def _add_order_options(parser: ArgumentParser) -> None:
    """Add `--sort-by`, the name of a metric, and `--smaller-is-better`, parsed as a boolean. Both
    are None by default, for the searcher's metric and setting.
    """
    parser.add_argument(
        "--sort-by",
        metavar="METRIC",
        help="rank checkpoints by this metric (default: the searcher's metric)",
    )
    parser.add_argument(
        "--smaller-is-better",
        type=parse_boolean,
        metavar="TRUE|FALSE",
        help="whether smaller values are better (default: the searcher's setting)",
    )


def _select_checkpoint(trial: Trial, arguments: Namespace) -> Checkpoint:
    """Return the checkpoint of a trial that `--best`, `--latest` or `--uuid` selects.

    The checkpoint is fetched with the open client of `arguments.client`. The best checkpoint is
    ranked by `--sort-by` and `--smaller-is-better`; deleted and damaged checkpoints do not count.

    Raises:
        DetcloudError: the trial does not have the checkpoint, `--sort-by` needs
            `--smaller-is-better`, or a request failed.
    """
    client: Client = arguments.client
    if arguments.uuid is not None:
        checkpoint = client.checkpoint(arguments.uuid)
        if checkpoint.trial_id != trial.id:
            raise DetcloudError(
                f"checkpoint {checkpoint.uuid} belongs to trial {checkpoint.trial_id}"
            )
        return checkpoint
    if arguments.latest:
        if trial.latest_checkpoint is None:
            raise DetcloudError(f"trial {trial.id} has no checkpoint")
        return client.checkpoint(trial.latest_checkpoint)
    best = rank_checkpoints(
        client.experiment(trial.experiment_id),
        list(trial.checkpoints()),
        arguments.sort_by,
        arguments.smaller_is_better,
    )
    if not best:
        raise DetcloudError(f"trial {trial.id} has no stored checkpoint with a validation")
    return best[0]


HANDLERS: Handlers = {
    "experiment download": Handler(add_experiment_download_arguments, download_best_checkpoints),
    "experiment download-model-def": Handler(add_model_def_arguments, download_model_def),
    "trial download": Handler(add_trial_download_arguments, download_trial_checkpoint),
}
