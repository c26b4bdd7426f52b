"""`detcloud trial support-bundle`: packs the cluster's data on a trial into an archive."""

from __future__ import annotations

import tarfile
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import add_trial_argument, load_trial
from detcloud.cli.rendering.output import render_json
from detcloud.cli.rendering.progress import show_progress
from detcloud.client import Client, Trial
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError
from detcloud.shared.yaml_writer import render_yaml


def add_bundle_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `write_support_bundle`: TRIAL and `--output-dir`, by default the working
    folder.
    """
    add_trial_argument(parser)
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the folder to write trial-ID-support.tar.gz to (default: this one)",
    )


def write_support_bundle(arguments: Namespace) -> int:
    """Write an archive with a trial's data, print the path, and return 0. A progress line is drawn
    on stderr.

    The file is trial-ID-support.tar.gz in the folder of `--output-dir`, which is created if needed.
    If a request fails, an incomplete archive remains.

    Raises:
        DetcloudError: the archive exists, no cluster is available, the cluster has no such trial,
            or another request failed.
        OSError: the folder or the archive cannot be written.
    """
    trial = load_trial(arguments)
    path = arguments.output_dir / f"trial-{trial.id}-support.tar.gz"
    if path.exists():
        raise DetcloudError(f"{path} exists; name another folder with -o")
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    with show_progress(f"trial {trial.id}") as progress, tarfile.open(path, "x:gz") as archive:
        for name, pieces in _documents(arguments.client, trial):
            progress.show_wait(name)
            # An archive needs a file's size first, and a log may be larger than the memory.
            with tempfile.TemporaryFile() as content:
                content.writelines(piece.encode(errors="replace") for piece in pieces)
                entry = tarfile.TarInfo(f"trial-{trial.id}-support/{name}")
                entry.size = content.tell()
                content.seek(0)
                archive.addfile(entry, content)
    print(path)
    return 0


def _documents(client: Client, trial: Trial) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the names and the texts of the archive's files, fetched from the cluster file by file.
    Each text comes in pieces. The cluster has masked secrets.

    If the cluster refuses the history, the history's file has the error.

    Raises:
        DetcloudError: another request failed, also during the iteration over the pieces of the log.
    """
    experiment = client.experiment(trial.experiment_id)
    yield "trial.json", [render_json(trial.data)]
    yield "experiment.json", [render_json(experiment.data)]
    yield "config.yaml", [render_yaml(experiment.config)]
    yield "cluster.json", [render_json(client.overview())]
    yield "metrics.json", [render_json(list(trial.metrics()))]
    yield "checkpoints.json", [render_json([checkpoint.data for checkpoint in trial.checkpoints()])]
    yield "trial.log", trial.logs()
    try:
        yield "history.json", [render_json(list(experiment.history(f"trial#{trial.id}")))]
    except ApiError as error:
        # The error may be the reason why the user sends the bundle.
        yield "history.json", [render_json({"error": str(error)})]


HANDLERS: Handlers = {
    "trial support-bundle": Handler(add_bundle_arguments, write_support_bundle),
}
