"""`python -m tests.end_to_end.gallery_pictures FOLDER`: the curves and results of the examples.

The pictures of docs/gallery.md, from a new cluster with two slots. The rows of the page's table are
printed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.end_to_end.laptop import ROOT, Laptop

EXAMPLE_SECONDS_MAX = 1800.0


class Example(NamedTuple):
    """An example of the gallery."""

    name: str
    """The name of the picture."""
    folder: str
    """The folder of the code, relative to the repository."""
    configuration: str = "config.yaml"
    """The configuration, relative to the folder."""
    group: str = "validation"
    """The metric group of the curves."""
    metric: str = ""
    """The metric of the curves; the searcher's if empty."""


EXAMPLES = (
    Example("digits-const", "examples/digits", "const.yaml", "training", "loss"),
    Example("digits-random", "examples/digits", "random.yaml", "training", "loss"),
    Example("digits-adaptive-asha", "examples/digits", "adaptive_asha.yaml"),
    Example("digits-bayesian", "examples/digits", "bayesian.yaml", "training", "loss"),
    Example("digits-pbt", "examples/digits", "pbt.yaml"),
    Example("digits-two-processes", "examples/digits", "two_processes.yaml", "training", "loss"),
    Example("keras-digits", "examples/keras_digits"),
    Example("transformers-text", "examples/transformers_text", "config.yaml", "training", "loss"),
    Example("lightning-digits", "examples/lightning_digits"),
    Example("deepspeed-digits", "examples/deepspeed_digits"),
)


def main() -> int:
    """Run every example and save the pictures."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [example for example in EXAMPLES if example.name in sys.argv[2:] or not sys.argv[2:]]
    with tempfile.TemporaryDirectory() as home:
        laptop = Laptop(Path(home) / "home", LOGNAME="ada")
        try:
            laptop.run("up", "--slots", 2)
            for number, example in enumerate(chosen, 1):
                print(run_example(laptop, example, number, folder), flush=True)
        finally:
            laptop.end()
    return 0


def run_example(laptop: Laptop, example: Example, number: int, folder: Path) -> str:
    """Run an example as experiment `number` and save the curves; return the row of the table."""
    code = ROOT / example.folder
    began = time.monotonic()
    configuration = code / example.configuration
    laptop.run("create", configuration, code, "--follow", seconds=EXAMPLE_SECONDS_MAX)
    seconds = time.monotonic() - began
    metric = ("--name", example.metric) if example.metric else ()
    picture = folder / f"{example.name}.png"
    laptop.run("metrics", number, "--group", example.group, *metric, "--png", picture)
    experiment = laptop.json("describe", number)
    trials = laptop.json("trial", "list", number)
    best = experiment["best_metric"]
    return f"{example.name} | {len(trials)} | {experiment['metric']} {best:.4g} | {seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
