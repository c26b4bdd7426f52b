"""`python -m tests.end_to_end.page_screenshots FOLDER`: pictures of the web page's views.

Those of docs/web-page.md, over a search of examples/digits on a cluster of its own.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.end_to_end.browser import open_window, start_chromium
from tests.end_to_end.laptop import DIGITS, Laptop

# The name of each picture, the address, the heading, and what is there once the view has loaded.
PICTURES = (
    ("experiments", "experiments", "Experiments", "newest first"),
    ("experiment", "experiments/1?group=training&metric=loss&smooth=0.6", "", "trial 8"),
    ("trials", "experiments/1/trials", "", "trials"),
    ("hyperparameters", "experiments/1/hyperparameters", "", "Importance"),
    ("code", "experiments/1/code?path=model_def.py&line=21", "", "DigitsTrial"),
    ("trial", "trials/1", "Trial 1", "All metrics"),
    ("logs", "trials/1/logs", "Trial 1", "complete"),
    ("compare", "compare?trials=1,2,3", "Compare", "trial 3 of"),
    ("job-queue", "jobs", "Job queue", "Manage Job"),
    ("pools", "pools/default", "Pools and agents", "ALIVE"),
    ("models", "models", "Models", "1 shown"),
    ("model", "models/digits/2", "digits", "Beats the linear baseline"),
    ("projects", "projects", "Projects", "experiments are moved"),
    ("new-code", "create", "New experiment", "Code from this machine"),
    ("new-experiment", "create?experiment=1", "New experiment", "is valid"),
)
SIZE = {"width": 1200, "height": 750}
FOLLOW_SECONDS_MAX = 900.0


def main() -> int:
    """Take every picture."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        laptop = Laptop(Path(home) / "home", LOGNAME="ada")
        try:
            take_pictures(laptop, folder)
        finally:
            laptop.end()
    return 0


def take_pictures(laptop: Laptop, folder: Path) -> None:
    """Take them into `folder`, of a search that has ended and one that trains."""
    laptop.run("up", "--slots", 2)
    config = DIGITS / "random.yaml"
    laptop.run("create", config, DIGITS, "--follow", seconds=FOLLOW_SECONDS_MAX)
    # So many trials that it trains still when the last picture is taken.
    laptop.run("create", config, DIGITS, "--config", "searcher.max_trials=500")
    laptop.run("create", config, DIGITS, "--paused")
    laptop.run("experiment", "move", 1, 2, "Vision/Digits")
    register_best(laptop)
    with start_chromium() as chromium, open_window(chromium, laptop, viewport=SIZE) as browser:
        browser.sign_in()
        for name, path, title, content in PICTURES:
            browser.go(path, title)
            browser.wait_for_text(content)
            # Charts are drawn with the frame after their data.
            browser.window.wait_for_timeout(500)
            picture = folder / f"{name}.png"
            browser.window.screenshot(path=str(picture))
            print(picture)


def register_best(laptop: Laptop) -> None:
    """Register the two best checkpoints of the search as versions of a model."""
    with laptop.cluster() as cluster:
        labels = ["vision"]
        model = cluster.create_model("digits", description="Handwritten digits", labels=labels)
        best = cluster.experiment(1).best_checkpoints()
        model.register_version(best[1].uuid, name="candidate")
        comment = "Beats the linear baseline"
        model.register_version(best[0].uuid, name="first release", comment=comment, labels=["best"])


if __name__ == "__main__":
    sys.exit(main())
