"""`detcloud experiment fork`: submit a changed copy of an experiment."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from detcloud.cli.commands.lifecycle import print_or_follow
from detcloud.cli.framework.argument_types import parse_id
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.failures import RefusedConfigError
from detcloud.cli.framework.options import (
    add_follow_options,
    add_overrides_option,
    add_yes_option,
    confirm,
)
from detcloud.cli.framework.session import add_experiment_argument, load_experiment
from detcloud.cli.rendering.fork_texts import colour_diff, estimate_lines
from detcloud.cli.rendering.hints import print_warnings
from detcloud.cli.rendering.output import add_output_options, print_value
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.terminal import has_colour, sanitize_output
from detcloud.client import Experiment
from detcloud.client.forks import ForkEstimate, ForkPreview
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError

NOT_FOUND = 404


def add_fork_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `fork_experiment`: EXPERIMENT, `--config`, the source of weights,
    `--model-dir`, `--diff`, `--yes`, `--paused`, options for following, and the output form
    (`--json` or `--yaml`).
    """
    add_experiment_argument(parser)
    add_overrides_option(parser)
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument(
        "--from-trial",
        type=parse_id,
        metavar="TRIAL",
        help="start all trials from the latest checkpoint of this trial",
    )
    weights.add_argument(
        "--from-checkpoint",
        metavar="UUID",
        help="start all trials from this checkpoint; the first characters of the UUID suffice",
    )
    parser.add_argument(
        "--model-dir",
        type=Path,
        metavar="MODEL_DIR",
        help="a folder or file with other training code (default: the code of EXPERIMENT)",
    )
    parser.add_argument(
        "--diff",
        action="store_true",
        help="only show the changes and the expected time and cost; create nothing",
    )
    add_yes_option(parser)
    parser.add_argument("--paused", action="store_true", help="create the experiment paused")
    add_follow_options(parser)
    add_output_options(parser, csv=False)


def fork_experiment(arguments: Namespace) -> int:
    """Create an experiment with the code and the submitted configuration of another experiment,
    print the new id, and follow the new experiment if requested.

    The changes of the configuration and the expected time and cost are printed to stderr before.
    On a terminal, ask for confirmation unless `--yes` was given. With `--diff`, print the changes
    and the expectation to stdout, create nothing, and return 0. Masked secrets of the original must
    be given again with `--config`.

    Return 0, the exit code of following, or 1 if the user declined. With `--json` or `--yaml`,
    print the experiment's fields, or after following the ended experiment's. Warnings are printed
    to stderr.

    Raises:
        RefusedConfigError: the cluster refused the changed configuration.
        DetcloudError: the code cannot be read, no cluster is available, the cluster has no such
            experiment, or another request failed.
    """
    if arguments.model_dir is not None and not arguments.model_dir.exists():
        raise DetcloudError(
            f"--model-dir: {arguments.model_dir} does not exist; expected a folder or file with "
            "training code"
        )
    original = load_experiment(arguments)
    overrides = [*arguments.overrides, *_weight_overrides(arguments)]
    asks = sys.stdin.isatty() and not arguments.yes
    try:
        if arguments.diff or asks or arguments.form == "text":
            preview = original.preview_fork(overrides)
            estimate = _estimate(original, preview)
            if arguments.diff:
                return _show_changes(arguments, preview, estimate)
            _print_changes(arguments, preview, estimate, sys.stderr)
        if asks and not confirm(f"Fork experiment {original.id}?", arguments):
            print("nothing was created", file=sys.stderr)
            return 1
        experiment = _create(original, arguments, overrides)
    except ApiError as error:
        if error.code == "invalid":
            raise RefusedConfigError(f"experiment {original.id}", error) from None
        raise
    print_warnings(experiment.warnings)
    text = f"Created experiment {experiment.id} from experiment {original.id}"
    return print_or_follow(experiment, arguments, text)


def _weight_overrides(arguments: Namespace) -> list[str]:
    """Return the overrides of `--from-trial` or `--from-checkpoint`. The other source is removed.

    Return [] without these options.
    """
    if arguments.from_trial is not None:
        return [
            "searcher.source_checkpoint_uuid=null",
            f"searcher.source_trial_id={arguments.from_trial}",
        ]
    if arguments.from_checkpoint is not None:
        # Quotes, because YAML reads a UUID such as 1e5 as a number.
        uuid = f"'{arguments.from_checkpoint}'"
        return ["searcher.source_trial_id=null", f"searcher.source_checkpoint_uuid={uuid}"]
    return []


def _estimate(original: Experiment, preview: ForkPreview) -> ForkEstimate | None:
    """Return the expected time and cost of a fork. Return None from a cluster of an older version.

    Raises:
        DetcloudError: a request failed.
    """
    try:
        return original.estimate_fork(preview)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def _create(original: Experiment, arguments: Namespace, overrides: list[str]) -> Experiment:
    """Upload the code of `--model-dir`, if any, and create the fork. A progress line is drawn on
    stderr during the upload.

    Raises:
        DetcloudError: the code cannot be packed, or the cluster refuses.
    """
    with show_progress("model code", bytes_text) as progress:
        return original.fork(
            overrides,
            model_dir=arguments.model_dir,
            paused=arguments.paused,
            on_progress=progress.update,
        )


def _show_changes(arguments: Namespace, preview: ForkPreview, estimate: ForkEstimate | None) -> int:
    """Print the result of `--diff` to stdout in the output form. Return 0."""
    if arguments.form == "text":
        _print_changes(arguments, preview, estimate, sys.stdout)
        print_warnings(list(preview.warnings))
        return 0
    document = {
        "experiment_id": preview.original_id,
        "diff": preview.diff(),
        "before": dict(preview.before),
        "after": dict(preview.after),
        "has_other_code": arguments.model_dir is not None,
        "warnings": list(preview.warnings),
        "estimate": None if estimate is None else asdict(estimate),
    }
    print_value(document, arguments.form)
    return 0


def _print_changes(
    arguments: Namespace, preview: ForkPreview, estimate: ForkEstimate | None, stream: TextIO
) -> None:
    """Print the diff of the configurations, other code, and the expected time and cost."""
    diff = sanitize_output(preview.diff(), stream)
    if not diff:
        print("the configuration is unchanged", file=stream)
    elif has_colour(stream):
        diff = colour_diff(diff)
    print(diff, end="", file=stream)
    if arguments.model_dir is not None:
        print(f"code: {arguments.model_dir}", file=stream)
    for line in [] if estimate is None else estimate_lines(estimate):
        print(line, file=stream)
    stream.flush()


HANDLERS: Handlers = {
    "experiment fork": Handler(add_fork_arguments, fork_experiment),
}
