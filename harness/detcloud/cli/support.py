"""Everything the cluster knows of a trial in one archive, to hand to whoever looks into it."""

from __future__ import annotations

import io
import tarfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from detcloud import DetcloudError
from detcloud.cli.output import json_text
from detcloud.cli.progress import progress
from detcloud.cli.trial import trial_argument, trial_of
from detcloud.cli.yaml_text import yaml_text
from detcloud.client import Client, Trial
from detcloud.http import ApiError


def bundle_arguments(parser: ArgumentParser) -> None:
    trial_argument(parser)
    parser.add_argument(
        "-o",
        "--output-dir",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the folder to write trial-ID-support.tar.gz to (default: this one)",
    )


def bundle(arguments: Namespace) -> int:
    trial = trial_of(arguments)
    path = arguments.output_dir / f"trial-{trial.id}-support.tar.gz"
    if path.exists():
        raise DetcloudError(f"{path} exists; name another folder with -o")
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    with progress(f"trial {trial.id}") as shown, tarfile.open(path, "x:gz") as archive:
        for name, text in _documents(arguments.client, trial):
            shown.tell(name)
            content = text.encode(errors="replace")
            entry = tarfile.TarInfo(f"trial-{trial.id}-support/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    print(path)
    return 0


def _documents(client: Client, trial: Trial) -> Iterator[tuple[str, str]]:
    """Names and texts; the cluster has masked what is secret in them."""
    experiment = client.experiment(trial.experiment_id)
    yield "trial.json", json_text(trial.data)
    yield "experiment.json", json_text(experiment.data)
    yield "config.yaml", yaml_text(experiment.config)
    yield "cluster.json", json_text(client.overview())
    yield "metrics.json", json_text(list(trial.metrics()))
    yield "checkpoints.json", json_text([found.data for found in trial.checkpoints()])
    yield "trial.log", "".join(trial.logs())
    try:
        yield "history.json", json_text(list(experiment.history(f"trial#{trial.id}")))
    except ApiError as error:
        # What went wrong with the history may be what the bundle is for.
        yield "history.json", json_text({"error": str(error)})
