"""`detcloud tensorboard`: downloads event files of trials, and runs TensorBoard on this machine.

The cluster has no machine that could run TensorBoard between experiments. So event files are
downloaded, and while TensorBoard runs, new events are downloaded repeatedly.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from detcloud.cli.framework.argument_types import parse_id, parse_port
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_quiet_option, add_replaced_option
from detcloud.cli.framework.session import connect
from detcloud.cli.framework.sigterm import exit_at_sigterm
from detcloud.cli.rendering.progress import show_progress
from detcloud.client import Client, Trial
from detcloud.client.event_files import EventFolder
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import Unreachable
from detcloud.shared.plurals import count_text

TRIALS_MAX = 1000
# The ports that TensorBoard tries by default.
PORTS = range(6006, 6016)
HOST = "127.0.0.1"
UPDATE_SECONDS = 30.0
END_SECONDS_MAX = 5.0


def add_download_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `download_event_files`: experiments, `--trial-ids`, `--output-dir`, by
    default `tensorboard`, and `--quiet`.
    """
    _add_selection(parser)
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        default=Path("tensorboard"),
        metavar="DIR",
        help="a trial's files go to DIR/experiment-ID/trial-ID (default: tensorboard)",
    )
    add_quiet_option(parser)


def download_event_files(arguments: Namespace) -> int:
    """Download the event files of the selected trials into DIR/experiment-ID/trial-ID, and print
    DIR unless `--quiet` is given. Return 0.

    Files that exist in the folders are replaced. Trials without event files get no folder. A file
    with an unsafe path is skipped, with a warning on stderr. If a download fails, earlier files
    remain.

    Raises:
        DetcloudError: no trial was named, too many trials were selected, or a folder cannot be
            written. Or no cluster is available, or a request failed.
    """
    folders = _event_folders(connect(arguments), arguments, arguments.output_dir)
    _update(folders)
    if not arguments.quiet:
        print(arguments.output_dir)
    return 0


def add_start_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `start_tensorboard`: experiments, `--trial-ids`, `--port`, None by
    default, and `--no-browser`. Options of Determined that detcloud lacks end with a usage error.
    """
    _add_selection(parser)
    parser.add_argument(
        "--port",
        type=parse_port,
        help="the port to serve TensorBoard on (default: the first free port from 6006)",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address without opening a browser"
    )
    terminal = "TensorBoard ends with this command; append `&` to run both in the background"
    add_replaced_option(parser, "-d", "--detach", instead=terminal)
    here = "TensorBoard runs on this machine, in no container and no workspace"
    for flags in (("-w", "--workspace-name"), ("-c", "--context"), ("-i", "--include")):
        add_replaced_option(parser, *flags, instead=here)
    add_replaced_option(parser, "--config", "--config-file", instead=here)


def start_tensorboard(arguments: Namespace) -> int:
    """Run TensorBoard on this machine until the process exits or Ctrl-C, and return the exit code.

    The address is printed, and a browser is opened unless `--no-browser` is given. New events are
    downloaded while TensorBoard runs; a cluster that does not answer is then only noted on stderr.
    The event files are in a temporary folder, which is removed at the end. Ctrl-C ends TensorBoard
    and raises KeyboardInterrupt. The handler of SIGTERM is replaced: the signal ends TensorBoard
    and raises SystemExit. Without events at the start, a notice is printed to stderr.

    Raises:
        DetcloudError: TensorBoard is not installed, no trial was named, too many were selected, or
            no port is free. Or no cluster is available, or a request failed.
    """
    if find_spec("tensorboard") is None:
        raise DetcloudError(
            "TensorBoard is not installed here: `pip install tensorboard`. `detcloud tensorboard "
            "download` downloads the files for TensorBoard on another machine"
        )
    # SIGTERM ends TensorBoard and removes the files, as Ctrl-C does.
    exit_at_sigterm()
    client = connect(arguments)
    port = arguments.port or _find_free_port()
    address = f"http://{HOST}:{port}/"
    with tempfile.TemporaryDirectory(prefix="detcloud-tensorboard-") as name:
        folders = _event_folders(client, arguments, Path(name))
        if not _update(folders):
            print("the trials have written nothing for TensorBoard yet", file=sys.stderr)
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", name]
        command += ["--host", HOST, "--port", str(port), "--reload_interval", "15"]
        process = subprocess.Popen(command)
        try:
            print(f"{address} (Ctrl-C ends TensorBoard)", flush=True)
            if not arguments.no_browser:
                # Imported here, since no other command needs it.
                import webbrowser

                webbrowser.open(address)
            return _follow(process, folders)
        finally:
            _end(process)


def _find_free_port() -> int:
    """Return the first free port of PORTS on 127.0.0.1. The port is not reserved.

    Raises:
        DetcloudError: all ports are in use.
    """
    for port in PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise DetcloudError(
        f"ports {PORTS[0]} to {PORTS[-1]} of this machine are in use: choose a port with --port"
    )


def _add_selection(parser: ArgumentParser) -> None:
    """Add the argument EXPERIMENT and the option `--trial-ids`, each with any number of ids. They
    are stored as lists, `experiment_ids` and `trial_ids`, empty by default.
    """
    parser.add_argument(
        "experiment_ids",
        type=parse_id,
        nargs="*",
        metavar="EXPERIMENT",
        help="experiments whose trials are all included",
    )
    parser.add_argument(
        "-t",
        "--trial-ids",
        type=parse_id,
        nargs="+",
        default=[],
        metavar="TRIAL",
        help="only these trials, which may belong to several experiments",
    )


def _event_folders(client: Client, arguments: Namespace, root: Path) -> list[EventFolder]:
    """Return the local folder of each trial that the arguments select. Nothing is downloaded or
    created yet.

    Trials are fetched from the cluster, and repeated trials count once. The list is empty for
    experiments without trials.

    Args:
        root: the folder that has a subfolder for each experiment.

    Raises:
        DetcloudError: no trial was named, more than TRIALS_MAX were selected, or a request failed.
    """
    chosen: list[Trial] = [client.trial(trial_id) for trial_id in arguments.trial_ids]
    for experiment_id in arguments.experiment_ids:
        chosen += client.experiment(experiment_id).trials()
    trials = {trial.id: trial for trial in chosen}.values()
    if not trials and not arguments.experiment_ids:
        raise DetcloudError("name experiments, or trials with --trial-ids")
    if len(trials) > TRIALS_MAX:
        raise DetcloudError(
            f"{count_text(len(trials), 'trial')} were selected, but TensorBoard shows at most "
            f"{TRIALS_MAX}: select trials with --trial-ids"
        )
    return [
        EventFolder(client, trial, root / f"experiment-{trial.experiment_id}" / f"trial-{trial.id}")
        for trial in trials
    ]


def _update(folders: list[EventFolder]) -> int:
    """Download the new events of all trials with a progress line on stderr. Return the number of
    bytes; 0 without new events.

    Raises:
        DetcloudError: a folder cannot be written, or a request failed.
    """
    total = 0
    with show_progress("files for TensorBoard") as progress:
        for done, folder in enumerate(folders):
            progress.update(done, len(folders))
            total += folder.update()
    return total


def _follow(process: subprocess.Popen[bytes], folders: list[EventFolder]) -> int:
    """Download new events every UPDATE_SECONDS until TensorBoard exits, and return the exit code of
    TensorBoard.

    The wait has no limit. An ended trial is read a last time. If the cluster is unreachable, print
    a notice to stderr and continue.

    Raises:
        DetcloudError: the cluster refused a request, or a folder cannot be written. TensorBoard
            then still runs.
    """
    running = folders
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(UPDATE_SECONDS)
        try:
            # The trial is fetched before its files, so that the last events are not missed.
            for folder in running:
                folder.trial.refresh()
                folder.update()
            running = [folder for folder in running if not folder.trial.has_ended]
        except Unreachable as error:
            print(f"{error}; trying again", file=sys.stderr, flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to TensorBoard, then SIGKILL after END_SECONDS_MAX, and wait for the end. Do
    nothing if the process has ended.
    """
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


HANDLERS: Handlers = {
    "tensorboard start": Handler(add_start_arguments, start_tensorboard),
    "tensorboard download": Handler(add_download_arguments, download_event_files),
}
