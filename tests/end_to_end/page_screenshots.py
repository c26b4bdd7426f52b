"""`python -m tests.end_to_end.page_screenshots FOLDER`: pictures of the web page's views.

The pictures of docs/web-page.md, from a new cluster with searches of examples/digits.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from tests.end_to_end.browser import Browser, open_window, start_chromium
from tests.end_to_end.laptop import DIGITS, Laptop

# The name of each picture, the address, the heading, and a text that appears when the view has
# loaded. Experiment 1 is a random search, 2 a halving, 3 trains; command 5 runs, and 6 has ended. 8
# trains with measurements of its machine.
PICTURES = (
    ("experiments", "experiments", "Experiments", "newest first"),
    ("overview", "experiments/1", "", "Importance"),
    ("experiment", "experiments/1?group=training&metric=loss&smooth=0.6", "", "As a table"),
    ("trials", "experiments/1/trials", "", "trials"),
    ("optimization-history", "experiments/1?picture=history", "", "best so far"),
    ("rungs", "experiments/2/rungs", "", "As a table"),
    ("timeline", "experiments/2/timeline?lanes=slots", "", "Slots over time"),
    ("hyperparameters", "experiments/1/hyperparameters", "", "Importance"),
    ("checkpoints", "experiments/1/checkpoints", "", "Register"),
    ("configuration", "experiments/1/configuration", "", "searcher:"),
    ("code", "experiments/1/code?path=model_def.py&line=21", "", "DigitsTrial"),
    ("history", "experiments/2/history", "", "Oldest first"),
    ("trial", "trials/1?group=training", "Trial 1", "All metrics"),
    ("logs", "trials/1/logs", "Trial 1", "complete"),
    ("compare", "compare?trials=1,2,3", "Compare", "trial 3 of"),
    ("commands", "commands", "Commands and notebooks", "newest first"),
    ("command", "commands/5", "count letters", "more may come"),
    ("job-queue", "jobs", "Job queue", "Manage Job"),
    ("pools", "pools/default", "Pools and agents", "alive"),
    ("models", "models", "Models", "1 shown"),
    ("model", "models/digits/2", "digits", "Beats the linear baseline"),
    ("projects", "projects", "Projects", "Move experiments in the list"),
    ("new-code", "create", "New experiment", "Code from this machine"),
    ("new-experiment", "create?experiment=1", "New experiment", "is valid"),
    ("report", "reports/1", "", "Learning rate and loss"),
    ("templates", "templates", "Templates", "gpu-defaults"),
    ("tokens", "tokens", "Tokens", "for the notebooks of bob"),
)
# The same views on a phone, in dark mode.
PHONE_PICTURES = (
    ("phone-experiment", "experiments/1?group=training&metric=loss&smooth=0.6", "", "As a table"),
    ("phone-job-queue", "jobs", "Job queue", "Manage Job"),
)
SIZE = {"width": 1200, "height": 900}
PHONE_SIZE = {"width": 390, "height": 800}
FOLLOW_SECONDS_MAX = 900.0
PROFILE_MS = 45_000.0
REPORT = """\
# Which search finds good models sooner?

Both searches draw the same hyperparameters. `digits_adaptive_asha` stops most trials early,
and trains **twice as many** trials.

```chart
kind: history
title: Best accuracy of both searches
experiments: [1, 2]
```

```chart
kind: scatter
title: Learning rate and loss
experiments: 1
hyperparameter: learning_rate
```
"""
COUNT = "for n in $(seq 100000); do echo letter $n; sleep 1; done"


def main() -> int:
    """Save every picture."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        laptop = Laptop(Path(home) / "home", LOGNAME="ada")
        try:
            fill_cluster(laptop)
            take_pictures(laptop, folder)
        finally:
            laptop.end()
    return 0


def fill_cluster(laptop: Laptop) -> None:
    """Fill the cluster with ended, running and waiting work, and all else in the pictures."""
    laptop.run("up", "--slots", 2)
    config = DIGITS / "random.yaml"
    # The importance of hyperparameters needs 20 trials.
    many = ("--config", "searcher.max_trials=24")
    laptop.run("create", config, DIGITS, *many, "--follow", seconds=FOLLOW_SECONDS_MAX)
    halving = (DIGITS / "adaptive_asha.yaml", DIGITS)
    laptop.run("create", *halving, "--follow", seconds=FOLLOW_SECONDS_MAX)
    # Enough trials to train until the last picture is saved.
    laptop.run("create", config, DIGITS, "--config", "searcher.max_trials=500")
    laptop.run("create", config, DIGITS, "--paused")
    laptop.run("experiment", "move", 1, 2, "Vision/Digits")
    no_slots = ("cmd", "run", "--detach", "--config", "resources.slots=0")
    laptop.run(*no_slots, "--config", "name=count letters", "--", "bash", "-c", COUNT)
    laptop.run(*no_slots, "--", "bash", "-c", "echo no such file; exit 3")
    laptop.run("wait", 6, code=1)
    laptop.run("notebook", "start", "--detach", "--no-browser")
    long = ("profiling.enabled=true", "searcher.max_length.epochs=3000")
    options = [word for setting in long for word in ("--config", setting)]
    laptop.run("create", DIGITS / "const.yaml", DIGITS, *options)
    with laptop.cluster() as cluster:
        cluster.set_template("gpu-defaults", "max_restarts: 1\n")
        cluster.create_report("Random search beside early stopping", REPORT, sharing="read")
        cluster.create_token("bob", role="user", description="for the notebooks of bob")
    register_best(laptop)


def register_best(laptop: Laptop) -> None:
    """Register the two best checkpoints of the search as versions of a model."""
    with laptop.cluster() as cluster:
        labels = ["vision"]
        model = cluster.create_model("digits", description="Handwritten digits", labels=labels)
        best = cluster.experiment(1).best_checkpoints()
        model.register_version(best[1].uuid, name="candidate")
        comment = "Beats the linear baseline"
        model.register_version(best[0].uuid, name="first release", comment=comment, labels=["best"])


def take_pictures(laptop: Laptop, folder: Path) -> None:
    """Save all pictures into `folder`."""
    with start_chromium() as chromium:
        with open_window(chromium, laptop, viewport=SIZE) as browser:
            browser.window.goto(browser.page)
            browser.see("Sign in to detcloud")
            save_picture(browser, folder, "sign-in")
            browser.sign_in()
            take_each(browser, folder, PICTURES)
            [trial] = laptop.json("trial", "list", 8)
            profiler = f"trials/{trial['id']}/profiler"
            # Charts of measurements need several values, which come every ten seconds.
            browser.window.wait_for_timeout(PROFILE_MS)
            take_each(browser, folder, (("profiler", profiler, "", "Processors in use"),))
        phone: Any = {"viewport": PHONE_SIZE, "color_scheme": "dark"}
        with open_window(chromium, laptop, **phone) as browser:
            browser.sign_in()
            take_each(browser, folder, PHONE_PICTURES)


def take_each(browser: Browser, folder: Path, pictures: tuple[tuple[str, ...], ...]) -> None:
    """Save a picture of each view."""
    for name, path, title, content in pictures:
        browser.go(path, title)
        browser.wait_for_text(content)
        # Charts are drawn a frame after their data arrive.
        browser.window.wait_for_timeout(500)
        save_picture(browser, folder, name)


def save_picture(browser: Browser, folder: Path, name: str) -> None:
    """Save a screenshot of the window under a name, with at most 256 colours."""
    picture = folder / f"{name}.png"
    with Image.open(io.BytesIO(browser.window.screenshot())) as shot:
        colours = shot.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    colours.save(picture, optimize=True)
    print(picture)


if __name__ == "__main__":
    sys.exit(main())
