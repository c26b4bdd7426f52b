"""Output of `detcloud model export`."""

import json
from pathlib import Path

import pytest

from detcloud.client import Client
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster

UUID = "12345678-aaaa"


@pytest.fixture(autouse=True)
def version(fake: FakeCluster, model_dir: Path) -> None:
    """Add version 1 of model `digits`: a checkpoint of a PyTorchTrial, with a copy of the code."""
    with Client() as client:
        client.create_experiment({"name": "x", "searcher": {"name": "single"}}, model_dir)
    load_data = json.dumps({"trial_type": "PyTorchTrial"}).encode()
    contents = {"state_dict.pth": b"s", "code/a.py": b"", "load_data.json": load_data}
    fake.add_checkpoint(UUID, contents)
    fields = {"model": "digits", "number": 1, "name": "", "checkpoint_uuid": UUID}
    fake.versions[1] = {**fields, "trial_id": 1, "experiment_id": 1}


def test_export_prints_the_loading_call(detcloud: Detcloud) -> None:
    assert detcloud("model", "export", "digits", "1", "out").out == (
        "version 1 of digits is in out\n"
        "to load the checkpoint from that folder:\n"
        "  from detcloud import pytorch\n"
        '  trial = pytorch.load_trial_from_checkpoint_path("checkpoint")\n'
    )
    code, _, err = detcloud("model", "export", "digits", "1", "out")
    assert (code, err) == (
        1,
        "error: out is not empty; name a folder that is new or empty\n",
    )


def test_printed_manifest_equals_the_written_manifest(detcloud: Detcloud) -> None:
    printed = json.loads(detcloud("model", "export", "digits", "1", "out", "--json").out)
    assert printed == json.loads(Path("out/manifest.json").read_text())


def test_export_without_load_data_has_no_loading_call(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    fake.files[UUID] = [file for file in fake.files[UUID] if file["path"] != "load_data.json"]
    assert detcloud("model", "export", "digits", "1", "out").out == (
        "version 1 of digits is in out\nonly the code that stored the checkpoint can load it\n"
    )
