"""Downloads by experiment and by trial: the best checkpoints, the latest one, the model code."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud import DetcloudError
from detcloud.cli.checkpoint import download_options, fetch
from detcloud.cli.experiment import experiment_argument, experiment_of
from detcloud.cli.options import (
    add_directory_option,
    add_quiet_option,
    count,
    truth,
    uuid_prefix,
)
from detcloud.cli.progress import progress
from detcloud.cli.terminal import bytes_text
from detcloud.cli.trial import trial_argument, trial_of
from detcloud.client import Checkpoint, Client, Trial
from detcloud.client.ranking import ranked


def experiment_download_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        default=Path("checkpoints"),
        metavar="DIR",
        help="each goes to a folder DIR/UUID (default: checkpoints)",
    )
    parser.add_argument(
        "--top-n", type=count, default=1, metavar="N", help="how many of the best (default: 1)"
    )
    _order_options(parser)
    add_quiet_option(parser)


def experiment_download(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    best = experiment.best_checkpoints(arguments.sort_by, arguments.smaller_is_better)
    chosen = best[: arguments.top_n]
    if not chosen:
        raise DetcloudError(f"experiment {experiment.id} has no validated checkpoint stored")
    for checkpoint in chosen:
        fetch(checkpoint, arguments.output_dir / checkpoint.uuid, quiet=arguments.quiet)
    return 0


def trial_download_arguments(parser: ArgumentParser) -> None:
    trial_argument(parser)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--best", action="store_true", help="its best checkpoint")
    group.add_argument("--latest", action="store_true", help="its latest checkpoint")
    group.add_argument("--uuid", type=uuid_prefix, help="this one of its checkpoints")
    _order_options(parser)
    download_options(parser)


def trial_download(arguments: Namespace) -> int:
    trial = trial_of(arguments)
    fetch(_chosen(trial, arguments), arguments.output_dir, quiet=arguments.quiet)
    return 0


def model_def_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    add_directory_option(parser, "experiment_ID_model_def")
    add_quiet_option(parser)


def model_def(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    destination = arguments.output_dir or Path(f"experiment_{experiment.id}_model_def")
    with progress("model code", bytes_text) as shown:
        experiment.download_model_def(destination, shown.update)
    if not arguments.quiet:
        print(destination)
    return 0


def _order_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--sort-by", metavar="METRIC", help="the best by this (default: the searcher's metric)"
    )
    parser.add_argument(
        "--smaller-is-better",
        type=truth,
        metavar="TRUE|FALSE",
        help="which way is better (default: as the searcher has it)",
    )


def _chosen(trial: Trial, arguments: Namespace) -> Checkpoint:
    """The checkpoint that the options ask for.

    Raises:
        DetcloudError: the trial has no such checkpoint.
    """
    client: Client = arguments.client
    if arguments.uuid is not None:
        checkpoint = client.checkpoint(arguments.uuid)
        if checkpoint.trial_id != trial.id:
            raise DetcloudError(
                f"checkpoint {checkpoint.uuid} is one of trial {checkpoint.trial_id}"
            )
        return checkpoint
    if arguments.latest:
        if trial.latest_checkpoint is None:
            raise DetcloudError(f"trial {trial.id} has no checkpoint")
        return client.checkpoint(trial.latest_checkpoint)
    best = ranked(
        client.experiment(trial.experiment_id),
        list(trial.checkpoints()),
        arguments.sort_by,
        arguments.smaller_is_better,
    )
    if not best:
        raise DetcloudError(f"trial {trial.id} has no validated checkpoint stored")
    return best[0]
