"""Scripts that control a cluster of this machine through Determined's client."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.end_to_end.laptop import Laptop

pytestmark = pytest.mark.end_to_end

TRAINING = """\
import json
import determined as det

with det.core.init() as core_context:
    for steps in (1, 2, 3):
        core_context.train.report_training_metrics(steps, {"loss": 1 / steps})
        core_context.train.report_validation_metrics(steps, {"error": abs(2 - steps)})
        with core_context.checkpoint.store_path({"steps_completed": steps}) as (path, uuid):
            (path / "state.json").write_text(json.dumps(steps))
"""
CONFIG = {
    "name": "steered",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "error"},
    "checkpoint_storage": {"save_trial_best": 3},
}
SCRIPT = f"""\
import json, pathlib
from determined.common.experimental import Determined, experiment
from determined.common.api import errors
from determined.experimental import client

created = Determined().create_experiment({CONFIG!r}, "model")
assert isinstance(created, experiment.Experiment)
trial = created.await_first_trial()
print(created.id, trial.id, created.wait(0.1).value)
found = client.get_experiment(created.id)
best = found.top_checkpoint()
folder = pathlib.Path(best.download())
print((folder / "state.json").read_text(), best.metadata["steps_completed"])
print([one.metadata["steps_completed"] for one in found.list_checkpoints()])
trial = client.get_trial(trial.id)
print([(one.group, one.steps_completed, one.metrics) for one in trial.iter_metrics("validation")])
print(trial.select_checkpoint(latest=True).uuid == trial.top_checkpoint().uuid)
print([line for line in trial.iter_logs() if "validation at batch 2" in line])
found.add_label("kept")
found.set_name("renamed")
print(client.get_experiment(found.id).labels, client.list_experiments(name="renamed")[0].id)
client.create_model("steered").register_version(best.uuid)
version = client.get_model("steered").get_version()
print(version.model_version, version.checkpoint.uuid == best.uuid)
try:
    client.get_model("other")
except errors.NotFoundException as error:
    print(best.training.validation_metrics["avgMetrics"], error)
print(client.create_workspace("team").name)
try:
    found.set_notes("x")
except AttributeError as error:
    print(error)
"""


def test_script_with_determineds_client_controls_this_cluster(
    laptop: Laptop, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text(TRAINING)
    (tmp_path / "script.py").write_text(SCRIPT)
    laptop.run("up", "--slots", 1)
    done = laptop.shell([sys.executable, "-m", "detcloud.compatibility", "script.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    # The error is |2 - steps|: least at 2, and equal at 1 and 3, where the earlier is first.
    reports = [("validation", steps, {"error": abs(2 - steps)}) for steps in (1, 2, 3)]
    assert lines[:8] == [
        "1 1 COMPLETED",
        "2 2",
        "[2, 1, 3]",
        str(reports),
        "False",
        "['[detcloud] validation at batch 2: error=0\\n']",
        "['kept'] 1",
        "1 True",
    ]
    assert lines[8] == "{'error': 0} there is no model other"
    assert lines[9] == "team"
    assert "set_notes is not supported by detcloud" in lines[10]
    assert len(lines) == 11
    assert laptop.json("describe", 1)["name"] == "renamed"
