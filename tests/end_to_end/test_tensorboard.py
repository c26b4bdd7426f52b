"""TensorBoard shows the reports of running trials."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tiny_model import write_model
from tests.patience import PATIENCE, wait_until

pytestmark = pytest.mark.end_to_end


def ask(port: int, path: str) -> Any:
    """Return TensorBoard's answer, or None without a server."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/data/{path}", timeout=10 * PATIENCE) as answer:
            return json.load(answer)
    except (URLError, ConnectionError):
        return None


@pytest.mark.nightly
def test_tensorboard_shows_the_trials_of_an_experiment_until_the_end(
    laptop: Laptop, tmp_path: Path
) -> None:
    laptop.run("create", *write_model(tmp_path))
    laptop.run("wait", 1)
    process = laptop.spawn("tensorboard", "start", 1, "--no-browser")
    try:
        assert process.stdout is not None
        match = re.match(r"http://127\.0\.0\.1:(\d+)/ ", process.stdout.readline())
        assert match
        port = int(match[1])
        tags = {"training/loss", "validation/loss"}
        runs = {"experiment-1/trial-1", "experiment-1/trial-2"}
        wait_until(
            lambda: (
                {run: set(item) for run, item in (ask(port, "plugin/scalars/tags") or {}).items()}
                == dict.fromkeys(runs, tags)
            ),
            what="TensorBoard has both curves of both trials",
        )
    finally:
        process.terminate()
        process.communicate(timeout=30 * PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert ask(port, "plugin/scalars/tags") is None
    wrong = laptop.run("tensorboard", "start", code=1).stderr
    assert "name experiments, or trials with --trial-ids" in wrong
    assert "runs TensorBoard on this machine" in laptop.run("tensorboard", "list", code=2).stderr
