"""Submits an experiment."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud import DetcloudError
from detcloud.cli.config import overrides_argument
from detcloud.cli.failures import ConfigRefused
from detcloud.cli.follow import follow_experiment
from detcloud.cli.session import cluster_of
from detcloud.cli.table import print_json
from detcloud.http import ApiError


def create_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a YAML file")
    parser.add_argument("model_dir", type=Path, metavar="MODEL_DIR", help="the code to train with")
    parser.add_argument("-f", "--follow", action="store_true", help="watch it until it ends")
    parser.add_argument("--paused", action="store_true", help="submit without starting")
    parser.add_argument("-t", "--test-mode", action="store_true", help="one batch, then validate")
    parser.add_argument("--local", action="store_true", help="with --test-mode: in this terminal")
    parser.add_argument("--template", metavar="NAME", help="a template to complete CONFIG with")
    overrides_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the experiment as JSON")


def create(arguments: Namespace) -> int:
    _check(arguments)
    if arguments.local:
        from detcloud.cli.local_test import run_local_test

        return run_local_test(arguments.config, arguments.model_dir, arguments.overrides)
    cluster = cluster_of(arguments, start=True)
    try:
        experiment = cluster.create_experiment(
            arguments.config,
            arguments.model_dir,
            overrides=arguments.overrides,
            template=arguments.template,
            paused=arguments.paused,
            test_mode=arguments.test_mode,
        )
    except ApiError as error:
        if error.code == "invalid":
            raise ConfigRefused(str(arguments.config), error) from None
        raise
    if arguments.follow or (arguments.test_mode and not arguments.paused):
        if not arguments.json:
            print(f"created experiment {experiment.id}", flush=True)
        return follow_experiment(experiment, quiet=arguments.json)
    if arguments.json:
        print_json(experiment.data)
    else:
        print(f"created experiment {experiment.id}")
    return 0


def _check(arguments: Namespace) -> None:
    """Finds what can be found before anything is started or sent."""
    if arguments.local and not arguments.test_mode:
        raise DetcloudError("--local needs --test-mode; leave it out to train on a cluster")
    if not arguments.config.is_file():
        raise DetcloudError(f"{arguments.config} is no file; expected a YAML configuration")
    if not arguments.model_dir.is_dir():
        raise DetcloudError(f"{arguments.model_dir} is no folder; expected the model's code")
    for override in arguments.overrides:
        if not override.partition("=")[0] or "=" not in override:
            raise DetcloudError(f"--config {override} is no KEY=VALUE, such as max_restarts=2")
