"""`detcloud experiment debug`: attaches VS Code or another debugger to a trial, over a tunnel."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, NamedTuple

from detcloud.cli.commands.debugger_tunnel import DebuggerTunnel, report
from detcloud.cli.commands.logs import follow_first_trial
from detcloud.cli.commands.start_progress import StartProgress
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED, INTERRUPTED, OK
from detcloud.cli.framework.polling import ends_soon
from detcloud.cli.framework.session import add_experiment_argument, load_experiment
from detcloud.cli.framework.sigterm import exit_at_sigterm
from detcloud.cli.rendering.hints import print_failure_hint
from detcloud.cli.rendering.output import add_output_options, print_value
from detcloud.cli.rendering.state_sentences import state_sentence
from detcloud.cli.rendering.table import shorten_message
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client import Client, Experiment
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError

CONFLICT = 409
POLLING_SECONDS = 0.5
WORKSPACE = "${workspaceFolder}"
"""VS Code's name for the folder that it has opened."""


class DebuggedTrial(NamedTuple):
    """A trial that accepts a debugger."""

    trial_id: int
    folder: str
    """The folder of the training code, in the trial's file system."""


def add_debug_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `debug_experiment`: EXPERIMENT, MODEL_DIR and the output form."""
    add_experiment_argument(parser)
    parser.add_argument(
        "model_dir",
        type=Path,
        nargs="?",
        metavar="MODEL_DIR",
        help="the folder or file with the training code (default: the folder that VS Code opens)",
    )
    add_output_options(parser, csv=False)


def debug_experiment(arguments: Namespace) -> int:
    """Open a tunnel to the debugger of an experiment that was created with `--debug`, as
    `run_debugger` does.

    Raises:
        DetcloudError: the experiment has no debugger, no cluster is available, or the cluster
            refuses the tunnel or another request.
    """
    experiment = load_experiment(arguments)
    if not (experiment.config.get("debugger") or {}).get("enabled"):
        raise DetcloudError(
            f"experiment {experiment.id} has no debugger: create it with `detcloud create "
            "--debug`, or set debugger.enabled in its configuration"
        )
    return run_debugger(arguments.client, experiment, arguments.model_dir, arguments.form)


def run_debugger(
    client: Client, experiment: Experiment, model_dir: Path | None, form: str = "text"
) -> int:
    """Wait until the trial accepts a debugger, and carry debuggers until the trial ends.

    The waits have no limit. As text, print an entry for VS Code's launch.json and the trial's log
    to stdout. As JSON or YAML, print only a map with the entry. Notices are printed to stderr.
    Return OK if the trial completed, and FAILED otherwise. Ctrl-C leaves the experiment running,
    prints a notice, and returns INTERRUPTED. The handler of SIGTERM is replaced: the signal closes
    the tunnel, and ends the process with 128 + the signal's number.

    Args:
        client: the connection to the cluster.
        experiment: an experiment with a debugger. Its fields are updated.
        model_dir: the folder or file with the training code on this machine. None if unknown.
        form: `text`, `json` or `yaml`.

    Raises:
        DetcloudError: the cluster refuses the tunnel or another request.
    """
    exit_at_sigterm()
    try:
        trial = await_trial(experiment)
        if trial is None:
            return _print_end(experiment)
        tunnel = _open_tunnel(client, experiment, trial)
        if tunnel is None:
            return _print_end(experiment)
        with tunnel:
            entry = launch_entry(experiment.id, tunnel.port, model_dir, trial)
            _show(experiment, trial, entry, form)
            if form == "text":
                return follow_first_trial(experiment)
            report(tunnel.wait())
    except KeyboardInterrupt:
        print(
            f"\nexperiment {experiment.id} continues; attach a debugger again with "
            f"`detcloud experiment debug {experiment.id}`, stop it with "
            f"`detcloud kill {experiment.id}`",
            file=sys.stderr,
        )
        return INTERRUPTED
    return _print_end(experiment) if ends_soon(experiment) else FAILED


def _open_tunnel(
    client: Client, experiment: Experiment, trial: DebuggedTrial
) -> DebuggerTunnel | None:
    """Return a tunnel to the trial. Return None if the experiment ends instead.

    Raises:
        DetcloudError: the cluster refuses the tunnel or another request.
    """
    try:
        return DebuggerTunnel(client, trial.trial_id)
    except ApiError as error:
        if error.status != CONFLICT or not ends_soon(experiment):
            raise
        return None


def await_trial(experiment: Experiment) -> DebuggedTrial | None:
    """Wait until the first trial accepts a debugger. Return None if the experiment has ended.

    The wait has no limit, for example while the trial is queued. Stderr shows its reason.

    Raises:
        DetcloudError: a request failed.
    """
    with StartProgress(experiment, "experiment") as progress:
        while True:
            experiment.refresh()
            if experiment.has_ended:
                return None
            trial = next(experiment.trials(1), None)
            if trial is not None:
                trial.refresh()
                if (place := parse_place(trial.id, trial.data)) is not None:
                    return place
            progress.show(trial)
            time.sleep(POLLING_SECONDS)


def parse_place(trial_id: int, fields: dict[str, Any]) -> DebuggedTrial | None:
    """Return the place of the debugger in the fields of a trial.

    Return None unless the present run of the trial has reported a place.
    """
    place = (fields.get("environment") or {}).get("debugger")
    allocation = fields.get("allocation") or {}
    if not isinstance(place, dict) or place.get("allocation") != allocation.get("id"):
        return None
    return DebuggedTrial(trial_id, str(place.get("folder")))


def launch_entry(
    experiment_id: int, port: int, model_dir: Path | None, trial: DebuggedTrial
) -> dict[str, Any]:
    """Return an entry for `configurations` of VS Code's launch.json."""
    local = WORKSPACE
    if model_dir is not None:
        path = model_dir.resolve()
        local = str(path.parent if path.is_file() else path)
    return {
        "name": f"detcloud: experiment {experiment_id}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "pathMappings": [{"localRoot": local, "remoteRoot": trial.folder}],
    }


def _show(experiment: Experiment, trial: DebuggedTrial, entry: dict[str, Any], form: str) -> None:
    """Print the entry for VS Code: alone as text, otherwise in a map with the ids."""
    if form != "text":
        ids = {"experiment_id": experiment.id, "trial_id": trial.trial_id}
        print_value({**ids, "launch": entry}, form)
    else:
        print(
            "add this entry to `configurations` of .vscode/launch.json, and start it in VS Code:",
            file=sys.stderr,
        )
        print_value(entry)
        print("the log of the trial follows; Ctrl-C leaves the experiment running", file=sys.stderr)
    sys.stdout.flush()


def _print_end(experiment: Experiment) -> int:
    """Print the state, the message and a hint of an ended experiment. Return the exit code."""
    message = shorten_message(experiment.message) if experiment.message else ""
    reason = f": {sanitize(message)}" if message else ""
    sentence = state_sentence(f"experiment {experiment.id}", experiment.state)
    print(f"{sentence}{reason}", file=sys.stderr)
    print_failure_hint(experiment)
    return OK if experiment.state == "COMPLETED" else FAILED


HANDLERS: Handlers = {"experiment debug": Handler(add_debug_arguments, debug_experiment)}
