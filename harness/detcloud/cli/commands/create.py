"""`detcloud create`: submit an experiment."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud.cli.commands.lifecycle import print_or_follow
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.failures import RefusedConfigError
from detcloud.cli.framework.options import (
    add_follow_options,
    add_include_option,
    add_overrides_option,
    add_replaced_option,
)
from detcloud.cli.framework.session import connect
from detcloud.cli.framework.tracing import trace_command
from detcloud.cli.local.test_mode import run_local_test
from detcloud.cli.rendering.hints import (
    print_continuation_hint,
    print_search_method_hint,
    print_warnings,
)
from detcloud.cli.rendering.output import add_output_options
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.client import Client, Experiment
from detcloud.client.schedule import Schedule
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError
from detcloud.shared.schedule_refusal import SCHEDULED_ALONE


def add_create_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `create_experiment`: the paths CONFIG and MODEL_DIR, options for
    following, tests, templates and overrides, and the output form (`--json` or `--yaml`).

    MODEL_DIR is None by default. Options of Determined's `create` that detcloud lacks end with a
    usage error.
    """
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the experiment configuration")
    parser.add_argument(
        "model_dir",
        type=Path,
        nargs="?",
        metavar="MODEL_DIR",
        help="the folder or file with the training code; omit if the entrypoint needs no code",
    )
    add_include_option(parser)
    add_follow_options(parser)
    parser.add_argument("--paused", action="store_true", help="submit the experiment paused")
    parser.add_argument(
        "-t", "--test-mode", "--test", action="store_true", help="train one batch, then validate"
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="let the trial wait until a debugger is attached, without restarts; print the entry "
        "for VS Code and the log",
    )
    parser.add_argument(
        "--local", action="store_true", help="with --test-mode: run in this terminal"
    )
    parser.add_argument(
        "--template", metavar="NAME", help="a template that provides settings missing from CONFIG"
    )
    add_overrides_option(parser)
    add_replaced_option(
        parser,
        "--project_id",
        "--project-id",
        instead="use the project's name: `--config workspace=NAME --config project=NAME`",
    )
    add_replaced_option(parser, "-p", "--publish", instead="ports of trials are not forwarded")
    parser.add_argument(
        "-g",
        "--git",
        action="store_true",
        help="state the git commit of MODEL_DIR in the configuration, for statuses of commits; the "
        "repository must have no uncommitted changes",
    )
    add_output_options(parser, csv=False)


def create_experiment(arguments: Namespace) -> int:
    """Submit an experiment, print the id, and follow the experiment if requested.

    Return 0, or the exit code of following. A local cluster is started if no cluster is configured
    or running. With `--debug`, continue as `run_debugger` does. With `--json` or `--yaml`, print
    the experiment's fields, or after following the ended experiment's. Warnings, hints and notes on
    excluded files are printed to stderr. With `--test-mode`, the experiment is followed unless
    `--paused` was given. With `--local`, run a local test instead, without a cluster, and return 0
    if the test passed, otherwise 1.

    A configuration with a section `schedule` creates a schedule instead of an experiment. Print the
    schedule's id or fields, and return 0.

    Raises:
        RefusedConfigError: the cluster refused the configuration.
        InvalidConfigError: with `--local`, the configuration was refused on this machine.
        DetcloudError: options exclude each other, a file does not exist, cannot be read or is too
            large, no cluster is available, or a request failed.
        KeyboardInterrupt: Ctrl-C during the submission, after a hint on stderr.
    """
    _check_arguments(arguments)
    if arguments.local:
        return run_local_test(
            arguments.config, arguments.model_dir, arguments.overrides, arguments.includes
        )
    if arguments.git:
        # Imported here, because few submissions state a commit.
        from detcloud.cli.local.source_commit import commit_overrides

        # The user's own overrides follow, and win.
        stated = commit_overrides(arguments.model_dir or arguments.config)
        arguments.overrides = [*stated, *arguments.overrides]
    created = _submit(arguments)
    if isinstance(created, Schedule):
        # Imported here, because few submissions have a schedule.
        from detcloud.cli.commands.schedule import print_created

        print_warnings(created.warnings)
        return print_created(created, arguments)
    experiment = created
    print_warnings(experiment.warnings)
    print_continuation_hint(experiment)
    print_search_method_hint(experiment)
    if arguments.debug:
        print(f"Created experiment {experiment.id}", file=sys.stderr)
        # Imported here, because few experiments are debugged.
        from detcloud.cli.commands.debugger import run_debugger

        return run_debugger(arguments.client, experiment, arguments.model_dir, arguments.form)
    if arguments.test_mode and not arguments.paused and not arguments.follow_first_trial:
        arguments.follow = True
    return print_or_follow(experiment, arguments, f"Created experiment {experiment.id}")


def _submit(arguments: Namespace) -> Experiment | Schedule:
    """Upload the code and the configuration, and return the new experiment, or the new schedule if
    the configuration has a section `schedule`.

    A local cluster is started if no cluster is configured or running. Code that the cluster has is
    not sent again. A progress line is drawn on stderr.

    Raises:
        RefusedConfigError: the cluster refused the configuration. The message has a line for each
            problem.
        DetcloudError: a file cannot be read or packed, no cluster is available, or the cluster
            refuses for another reason.
        KeyboardInterrupt: Ctrl-C, after a hint on stderr, because the experiment may exist.
    """
    client = connect(arguments, start=True)
    # The user's own overrides follow, and win.
    debugging = ["debugger.enabled=true", "max_restarts=0"] if arguments.debug else []
    with (
        trace_command("detcloud create") as traceparent,
        show_progress("model code", bytes_text) as progress,
    ):
        client.traceparent = traceparent
        try:
            return client.create_experiment(
                arguments.config,
                arguments.model_dir,
                overrides=[*debugging, *arguments.overrides],
                template=arguments.template,
                paused=arguments.paused,
                test_mode=arguments.test_mode,
                includes=arguments.includes,
                on_progress=progress.update,
            )
        except ApiError as error:
            if _is_scheduled(error):
                return _create_schedule(client, arguments)
            if error.code in ("invalid", "too_large"):
                raise RefusedConfigError(str(arguments.config), error) from None
            raise
        except KeyboardInterrupt:
            print("`detcloud list` shows whether the experiment was created", file=sys.stderr)
            raise


def _create_schedule(client: Client, arguments: Namespace) -> Schedule:
    """Create a schedule with the code and the configuration of the arguments; return the schedule.

    Raises:
        RefusedConfigError: the cluster refused the configuration.
        DetcloudError: the options follow or debug an experiment, a file cannot be read, or the
            cluster refuses for another reason.
    """
    for option in ("follow", "follow_first_trial", "debug"):
        if getattr(arguments, option):
            word = option.replace("_", "-")
            raise DetcloudError(f"--{word} is not possible for a configuration with a schedule")
    try:
        return client.create_schedule(
            arguments.config,
            arguments.model_dir,
            overrides=arguments.overrides,
            template=arguments.template,
            paused=arguments.paused,
            includes=arguments.includes,
        )
    except ApiError as error:
        if error.code in ("invalid", "too_large"):
            raise RefusedConfigError(str(arguments.config), error) from None
        raise


def _is_scheduled(error: ApiError) -> bool:
    """Return whether the cluster refused a configuration because of the section `schedule`."""
    return error.code == "invalid" and any(
        detail.get("path") == "schedule" and detail.get("message") == SCHEDULED_ALONE
        for detail in error.details
    )


def _check_arguments(arguments: Namespace) -> None:
    """Check the arguments before the upload, so that a mistake starts no cluster. Only the
    existence of the files is checked; nothing is sent.

    Raises:
        DetcloudError: options exclude each other, the configuration is not a file, or the model
            folder does not exist.
    """
    if arguments.local and not arguments.test_mode:
        raise DetcloudError("--local requires --test-mode; remove it to train on a cluster")
    for option in ("local", "paused"):
        if arguments.debug and getattr(arguments, option):
            raise DetcloudError(f"--debug needs a trial that runs: remove --{option}")
    if arguments.local and arguments.template is not None:
        raise DetcloudError("--template is stored on a cluster: it cannot be used with --local")
    if not arguments.config.is_file():
        raise DetcloudError(f"{arguments.config} is not a file; expected a YAML configuration")
    if arguments.model_dir is not None and not arguments.model_dir.exists():
        raise DetcloudError(
            f"{arguments.model_dir} does not exist; expected a folder or file with training code"
        )


HANDLERS: Handlers = {
    "experiment create": Handler(add_create_arguments, create_experiment),
}
