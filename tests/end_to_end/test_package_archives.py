"""Packages that a machine installed reach the experiment's next machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.agents import Agents
from tests.end_to_end.laptop import Laptop
from tests.patience import wait_until
from tests.wheels import wheel

pytestmark = pytest.mark.end_to_end

LOST_SECONDS_MAX = 90.0
# The first run waits for the end of its machine.
TRAIN = """\
import time
import declared_probe, hook_probe
from detcloud import core

with core.init() as context:
    print("run", context.info.epoch, declared_probe.VERSION, hook_probe.VERSION, flush=True)
    while context.info.epoch == 1 and not context.preempt.should_preempt():
        time.sleep(0.1)
    for operation in context.searcher.operations():
        context.train.report_validation_metrics(operation.length, {"loss": 1.0})
        operation.complete(1.0)
"""


@pytest.fixture
def agents(laptop: Laptop) -> Iterator[Agents]:
    made = Agents(laptop)
    yield made
    made.end()


def write_model(folder: Path) -> tuple[Path, Path]:
    """Write model code with wheels of declared packages and of a hook; needs no network."""
    model = folder / "model"
    model.mkdir()
    (model / "train.py").write_text(TRAIN)
    names = {}
    for module in ("declared_probe", "hook_probe"):
        names[module], content = wheel(module)
        (model / names[module]).write_bytes(content)
    (model / "startup-hook.sh").write_text(f"pip install --no-index ./{names['hook_probe']}\n")
    config = {
        "name": "packages",
        "entrypoint": "python3 train.py",
        "environment": {"pip": ["--no-index", f"./{names['declared_probe']}"]},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
        "max_restarts": 0,
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(config))
    return path, model


def stored_kinds(laptop: Laptop) -> set[str]:
    """Return the kinds of the archives in the cluster's object store."""
    packages = laptop.home.glob("**/packages/1/*/*/*")
    return {path.parts[-3] for path in packages}


@pytest.mark.nightly
def test_packages_survive_the_loss_of_a_machine(
    laptop: Laptop, agents: Agents, tmp_path: Path
) -> None:
    laptop.run("up", "--slots", 1)
    wait_until(lambda: "local" in agents.alive())
    laptop.run("agent", "disable", "local")
    agents.start("one", 1)
    wait_until(lambda: "one" in agents.alive())
    laptop.run("create", *write_model(tmp_path))
    wait_until(lambda: stored_kinds(laptop) == {"declared", "hook"})
    wait_until(lambda: "run 1 1 1" in laptop.log(1))
    agents.strike("one")
    shutil.rmtree(agents.folder("one"))
    agents.start("two", 1)
    wait_until(lambda: "run 2 1 1" in laptop.log(1), LOST_SECONDS_MAX)
    laptop.await_completion(1)
    second = laptop.log(1).partition("run 1 1 1")[2]
    assert "declared packages: packages fetched in" in second
    assert "startup-hook.sh: packages fetched in" in second
    assert "environment.pip: packages found on this machine" in second
    assert "installed by an earlier run: pip install" in second
    assert "packages installed in" not in second
    assert "Installing collected packages" not in second
    wait_until(lambda: not stored_kinds(laptop))
