"""Submits an experiment."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud import DetcloudError
from detcloud.cli.config import overrides_argument
from detcloud.cli.failures import ConfigRefused
from detcloud.cli.lifecycle import follow_arguments, followed_or_printed
from detcloud.cli.options import foreign_option
from detcloud.cli.output import add_output_options
from detcloud.cli.progress import progress
from detcloud.cli.search_method import print_method_hint
from detcloud.cli.session import client_of
from detcloud.cli.terminal import bytes_text, clean
from detcloud.client import Experiment
from detcloud.http import ApiError


def create_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file")
    parser.add_argument(
        "model_dir",
        type=Path,
        nargs="?",
        metavar="MODEL_DIR",
        help="the code to train with; may be left out with --include",
    )
    parser.add_argument(
        "-i",
        "--include",
        dest="includes",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="send this file or folder beside the code; may be repeated",
    )
    follow_arguments(parser)
    parser.add_argument("--paused", action="store_true", help="submit without starting")
    parser.add_argument("-t", "--test-mode", action="store_true", help="one batch, then validate")
    parser.add_argument("--local", action="store_true", help="with --test-mode: in this terminal")
    parser.add_argument("--template", metavar="NAME", help="a template to complete CONFIG with")
    overrides_argument(parser)
    foreign_option(parser, "--project_id", "--project-id", instead="labels group experiments")
    foreign_option(parser, "-p", "--publish", instead="a trial's ports stay on its machine")
    foreign_option(parser, "--git", instead="the folder is sent as it is")
    add_output_options(parser, csv=False)


def create(arguments: Namespace) -> int:
    _check(arguments)
    if arguments.local:
        from detcloud.cli.local_test import run_local_test

        return run_local_test(
            arguments.config, arguments.model_dir, arguments.overrides, arguments.includes
        )
    experiment = _created(arguments)
    for warning in experiment.warnings:
        print(f"warning: {clean(warning)}", file=sys.stderr)
    print_method_hint(experiment)
    if arguments.test_mode and not arguments.paused and not arguments.follow_first_trial:
        arguments.follow = True
    return followed_or_printed(experiment, arguments, f"created experiment {experiment.id}")


def _created(arguments: Namespace) -> Experiment:
    """Raises ConfigRefused with the lines of what is wrong."""
    client = client_of(arguments, start=True)
    with progress("model code", bytes_text) as shown:
        try:
            return client.create_experiment(
                arguments.config,
                arguments.model_dir,
                overrides=arguments.overrides,
                template=arguments.template,
                paused=arguments.paused,
                test_mode=arguments.test_mode,
                includes=arguments.includes,
                on_progress=shown.update,
            )
        except ApiError as error:
            if error.code in ("invalid", "too_large"):
                raise ConfigRefused(str(arguments.config), error) from None
            raise
        except KeyboardInterrupt:
            print("`detcloud list` shows whether it was created all the same", file=sys.stderr)
            raise


def _check(arguments: Namespace) -> None:
    """Finds what can be found before anything is started or sent."""
    if arguments.local and not arguments.test_mode:
        raise DetcloudError("--local needs --test-mode; leave it out to train on a cluster")
    if arguments.local and arguments.template is not None:
        raise DetcloudError("--template is kept on a cluster; leave it out with --local")
    if not arguments.config.is_file():
        raise DetcloudError(f"{arguments.config} is no file; expected a YAML configuration")
    if arguments.model_dir is None and not arguments.includes:
        raise DetcloudError("there is no code to train with; name MODEL_DIR or --include files")
    if arguments.model_dir is not None and not arguments.model_dir.is_dir():
        raise DetcloudError(f"{arguments.model_dir} is no folder; expected the model's code")
