"""A registered checkpoint store supports all operations of the server."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from control_plane.checkpoint_gc.collector import Collector
from control_plane.checkpoint_gc.stores import Stores
from control_plane.checkpoint_stores import registry
from control_plane.checkpoint_stores.store_type import RequiredPackage
from control_plane.config.check import check_config
from control_plane.config.problems import ConfigInvalid
from control_plane.config.reference import render_reference
from control_plane.config.storage import CheckpointStorage
from control_plane.field_types import Text
from detcloud.core.checkpoint import CheckpointContext
from detcloud.shared.trial_directory import TrialSpec
from detcloud.storage import StorageError, build_store
from tests.engine_timing import UNHURRIED
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import Cluster, build_cluster
from tests.unit.api.exchange import call
from tests.unit.checkpoint_stores import memory_type

Shelves = dict[str, dict[str, bytes]]
ON_A = CONFIG + "checkpoint_storage: {type: memory, shelf: a}\n"

# Reads a configuration of each type in a new process and prints the imported store modules.
READ_CONFIGURATIONS = """
import sys
from control_plane.config.check import check_config
config = "{entrypoint: train.py, searcher: {name: single, metric: loss, max_length: 10}}"
for storage in sys.argv[1:]:
    check_config(config, overrides=[f"checkpoint_storage={storage}"])
names = ("boto", "detcloud.shared.s3", "control_plane.checkpoint_stores.")
print(*sorted(name for name in sys.modules if name.startswith(names)))
"""


class Lacking(CheckpointStorage):
    """Options of a store whose package may be missing."""

    type: Literal["lacking"]
    shelf: Text
    """The shelf."""


class Trial:
    """Trial 1 of an experiment, which stores checkpoints in the store of the specification."""

    def __init__(self, cluster: Cluster, config: str) -> None:
        assert cluster.create(config).status == 201
        self.agent = Agent(cluster)
        desired = self.agent.sync().json["desired"]
        self.agent.known = [entry["allocation"] for entry in desired]
        self.storage: dict[str, str] = desired[0]["spec"]["storage"]

    def store(self, steps: int, folder: Path) -> str:
        """Store the folder as a checkpoint, report the checkpoint, and return the UUID."""

        def report(kind: str, **fields: Any) -> None:
            assert self.agent.report("1.1", {"kind": kind, **fields}).status == 200

        spec = TrialSpec(experiment_id=1, trial_id=1, epoch=1)
        context = CheckpointContext(spec, build_store(self.storage), report, on_cluster=True)
        return context.upload(folder, {"steps_completed": steps})

    def kill(self, cluster: Cluster) -> None:
        cluster.post("/experiments/1/kill", {})
        self.agent.sync()
        for allocation in self.agent.known:
            exited = {"kind": "exited", "reason": "killed", "code": None}
            self.agent.report(allocation, exited, writer="agent")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "trained"
    path.mkdir()
    (path / "weights").write_bytes(b"of steel")
    return path


def collect(cluster: Cluster) -> None:
    """Run the collector until no work is left."""
    services = cluster.services
    collector = Collector(
        Stores(services.engine, services.objects, services.checkpoints), UNHURRIED.monotonic_seconds
    )
    for _ in range(50):
        if not collector.collect(budget_seconds=60):
            return
    raise AssertionError("the collection does not end")


def test_experiment_stores_checkpoints_in_a_registered_store(
    cluster: Cluster, shelves: Shelves
) -> None:
    assert Trial(cluster, ON_A).storage == {"type": "memory", "shelf": "a"}


def test_registered_store_can_be_the_default_of_the_cluster(
    tmp_path: Path, shelves: Shelves
) -> None:
    default = memory_type.Memory(type="memory", shelf="b")
    cluster = build_cluster(tmp_path, checkpoints=default)
    assert Trial(cluster, CONFIG).storage == {"type": "memory", "shelf": "b"}


def test_files_of_a_registered_store_are_listed_and_downloaded(
    cluster: Cluster, shelves: Shelves, folder: Path
) -> None:
    uuid = Trial(cluster, ON_A).store(5, folder)
    files = cluster.get(f"/checkpoints/{uuid}/files").json["items"]
    assert [file["path"] for file in files] == ["metadata.json", "weights"]
    assert call(cluster.app, "GET", files[1]["url"]).body == b"of steel"
    del shelves["a"][f"1/1/1/{uuid}/weights"]
    missing = call(cluster.app, "GET", files[1]["url"])
    assert (missing.status, missing.code) == (404, "not_found")
    assert "weights is not there" in missing.json["error"]["message"]


def test_collector_removes_checkpoints_from_a_registered_store(
    cluster: Cluster, shelves: Shelves, folder: Path
) -> None:
    trial = Trial(cluster, ON_A)
    first, latest = trial.store(5, folder), trial.store(6, folder)
    trial.kill(cluster)
    collect(cluster)
    # The defaults keep 1 best and 1 latest of each trial; no checkpoint has a metric.
    assert {key.split("/")[3] for key in shelves["a"]} == {latest}
    assert cluster.get(f"/checkpoints/{first}").json["state"] == "DELETED"


def test_warm_start_from_a_different_store_is_refused(
    cluster: Cluster, shelves: Shelves, folder: Path
) -> None:
    uuid = Trial(cluster, ON_A).store(5, folder)
    warm = CONFIG.replace("searcher: {", f"searcher: {{source_checkpoint_uuid: {uuid}, ")
    assert cluster.create(warm + "checkpoint_storage: {type: memory, shelf: a}\n").status == 201
    refused = cluster.create(warm + "checkpoint_storage: {type: memory, shelf: b}\n")
    text = "is in the store shelf a, but this experiment's store is shelf b"
    assert text in refused.body.decode()


def test_problems_of_a_registered_store_name_the_field(shelves: Shelves) -> None:
    def problems(storage: str) -> str:
        with pytest.raises(ConfigInvalid) as caught:
            check_config(CONFIG, overrides=[f"checkpoint_storage={storage}"])
        (problem,) = caught.value.problems
        return f"{problem.path} {problem.message}"

    assert problems("{type: memory}") == "checkpoint_storage.shelf is required"
    assert problems("{type: memory, shelf: a, x: 1}") == (
        "checkpoint_storage.x is not a known field"
    )
    known = "azure, directory, gcs, hdfs, memory, s3, shared_fs"
    assert problems("{type: tape}") == f'checkpoint_storage.type must be one of {known}, not "tape"'


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.module"])
def test_missing_package_of_a_store_is_named(
    cluster: Cluster, shelves: Shelves, module: str
) -> None:
    package = RequiredPackage(module, "shelves[all]")
    changed: Any = {"name": "lacking", "options": Lacking, "required_package": package}
    registry.register(replace(memory_type.SPEC, **changed))
    refused = cluster.create(ON_A.replace("memory", "lacking")).json["error"]["details"][0]
    assert refused["path"] == "checkpoint_storage.type"
    assert refused["message"] == "lacking needs a package that is not installed on this cluster"
    assert refused["hint"] == "pip install 'shelves[all]' there"


def test_reference_lists_a_registered_store_last(shelves: Shelves) -> None:
    sections = render_reference().split("\n## Checkpoint storage\n")[1].split("\n### ")
    names = [section.partition("\n")[0] for section in sections[1:8]]
    assert names[:7] == ["shared_fs", "directory", "hdfs", "s3", "gcs", "azure", "memory"]
    assert "| `shelf` | string | required | The shelf. |" in sections[7]


def test_rejects_duplicate_store_names(shelves: Shelves) -> None:
    with pytest.raises(ValueError, match="there is a checkpoint store memory already"):
        registry.register(memory_type.SPEC)
    with pytest.raises(ValueError, match="there is a checkpoint store s3 already"):
        registry.register(replace(memory_type.SPEC, name="s3"))


def test_store_types_of_the_server_are_known_to_trials() -> None:
    with pytest.raises(StorageError, match="known: ") as refused:
        build_store({"type": "tape"})
    known = str(refused.value).partition("known: ")[2].split(", ")
    assert {spec.name for spec in registry.store_types()} <= set(known)


def test_options_of_a_store_type_accept_a_single_name() -> None:
    for spec in registry.store_types():
        assert get_args(spec.options.model_fields["type"].annotation) == (spec.name,)


@pytest.mark.parametrize(
    "storages",
    [
        (),
        (
            "{save_trial_best: 2}",
            "{type: s3, bucket: b}",
            "{type: directory, container_path: /a}",
            "{type: shared_fs, host_path: /a}",
        ),
    ],
)
def test_reading_a_configuration_imports_no_store_client(storages: tuple[str, ...]) -> None:
    program = [sys.executable, "-c", READ_CONFIGURATIONS, *storages]
    shown = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
    package = "control_plane.checkpoint_stores."
    modules = {name.removeprefix(package) for name in shown}
    types = {f"types.{spec.name}" for spec in registry.store_types()} if storages else set()
    assert modules == {"checkpoint_files", "store_type", "registry", "types", *types}
