"""A cluster without agents: an experiment with checkpoints on a real disk, and a collector."""

import json
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.collection_rows import COLLECTIONS
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.messages.experiment import DeleteRequested, KillRequested, SettingsChanged
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.actors.messages.trial import CheckpointDeletionRequested
from control_plane.actors.pins import PINS
from control_plane.actors.records import CheckpointRef, Retention
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CHECKPOINTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.agents.sessions import INTENTS
from control_plane.checkpoint_gc.collector import Collector, pending_requests
from control_plane.checkpoint_gc.stores import Stores
from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.config.check import check_config
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.engine import Engine
from control_plane.engine.head import HEAD, PARTS, decode_head, encode_head
from control_plane.evolve import evolve
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.objects.store import ObjectKey, ObjectStore
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put, StateTable
from tests.engine_timing import UNHURRIED
from tests.unit.actors.sample_messages import experiment_submitted, random_plan

START_MS = 1_700_000_000_000
EXPERIMENT = addresses.experiment(1)
CLUSTER_ID = "9c1f"
CONFIG = (
    check_config("{entrypoint: train.py, searcher: {name: single, metric: loss, max_length: 10}}")
    .to_json()
    .decode()
)


@dataclass(frozen=True)
class StoresWithFiles(Stores):
    """Stores whose checkpoint files are `files`, for every experiment."""

    files: CheckpointFiles | None = None

    def checkpoint_files(self, experiment_id: int, *, purge: bool = False) -> CheckpointFiles:
        assert self.files is not None
        return self.files


@dataclass
class CollectionCluster:
    """A cluster without agents; `trials` has the ids of the experiment's ended trials."""

    folder: Path
    table: StateTable = field(default_factory=lambda: SqliteTable(":memory:"))
    now_ms: int = START_MS
    trials: list[int] = field(default_factory=list)
    offset: int = 0
    objects: ObjectStore = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.root = self.folder / "checkpoints"
        self.root.mkdir(exist_ok=True)
        self.engine = Engine(self.table, lambda: self.now_ms, UNHURRIED)
        signer = HmacUrlSigner(b"s" * 32)
        self.objects = self.objects or DirectoryObjectStore(self.folder / "objects", signer)
        checkpoints = Directory(type="directory", container_path=str(self.root))
        self.stores = Stores(self.engine, self.objects, checkpoints, cluster_id=CLUSTER_ID)
        self.collector = Collector(self.stores, UNHURRIED.monotonic_seconds)

    def replace_files(self, files: CheckpointFiles) -> None:
        """Let `stores` and `collector` use other checkpoint files."""
        self.stores = StoresWithFiles(**{**vars(self.stores), "files": files})
        self.collector = Collector(self.stores, UNHURRIED.monotonic_seconds)

    @staticmethod
    def after_search(folder: Path) -> "CollectionCluster":
        """Return a cluster after `run_search`."""
        cluster = CollectionCluster(folder)
        cluster.run_search()
        return cluster

    def run_search(self) -> None:
        """Run two trials to the end, with three checkpoints each; the last has no metric."""
        self.start_experiment(2)
        self.end_experiment()
        assert self.trials == [1, 2]
        for trial_id, metrics in ((1, (0.3, 0.1, None)), (2, (0.4, 0.2, None))):
            for steps, metric in zip((10, 20, 30), metrics, strict=True):
                self.add(trial_id, steps, metric)

    @property
    def experiment(self) -> ExperimentState:
        state = self.engine.read_state(EXPERIMENT)
        assert isinstance(state, ExperimentState)
        return state

    def start_experiment(self, trials: int = 2) -> None:
        """Submit an experiment with trials that wait for slots."""
        self.engine.execute_command(addresses.pool("default"), PoolConfigured("default"))
        submitted = replace(experiment_submitted(random_plan(trials)), config=CONFIG)
        self.engine.execute_command(EXPERIMENT, submitted)
        summaries = self.engine.read_part(EXPERIMENT, "trials/0").trials
        self.trials = [summary.trial_id for summary in summaries]

    def end_experiment(self) -> None:
        """Kill the experiment and run the collection that the kill requests."""
        self.engine.execute_command(EXPERIMENT, KillRequested())
        assert self.experiment.status.is_final
        self.work_off()

    def add(
        self,
        trial_id: int,
        steps: int,
        metric: float | None = None,
        *,
        path: str = "",
        state: CheckpointState = CheckpointState.COMPLETED,
    ) -> str:
        """Write the rows and the manifest of a checkpoint, as after a trial's report; return the
        UUID.
        """
        uuid = uuid_of(trial_id, steps)
        place = f"1/{trial_id}/1/{uuid}"
        reference = CheckpointRef(uuid, trial_id, steps, path or place, "0" * 64)
        record = CheckpointRecord(reference, 8, 1, metric, START_MS + steps, {}, state)
        address = addresses.trial(trial_id)
        name = CHECKPOINT_PARTS + uuid
        head = self.table.get(Key(address, HEAD))
        assert head is not None
        body = actor_type_at(address).encode_part(name, record)
        part = Put(Key(address, PARTS + name), head.revision, body, Expect.ANYTHING)
        index = Put(Key(CHECKPOINTS, uuid), 1, b"%d" % trial_id, Expect.ANYTHING)
        self.table.commit((part, index))
        self.write(f"{place}/manifest.json")
        return uuid

    def write(self, path: str) -> Path:
        """Write a file below the root of the checkpoints and return the path."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        return file

    def intend(self, trial_id: int, epoch: int, line: dict[str, object]) -> None:
        """Write the row of an upload that a trial has announced."""
        self.offset += 10
        sort = f"{INTENTS}{epoch:08d}#0#{self.offset:014d}"
        self.put(addresses.trial(trial_id), sort, {"kind": "checkpoint_intent", **line})

    def pin(self, uuid: str, experiment_id: int) -> None:
        """Write the pin of an experiment that starts from a checkpoint."""
        self.put(PINS, uuid, {"by": [experiment_id], "gone": False})

    def set_latest(self, trial_id: int, steps: int) -> None:
        """Write the trial's state with this checkpoint as the latest."""
        address, uuid = addresses.trial(trial_id), uuid_of(trial_id, steps)
        row = self.table.get(Key(address, HEAD))
        assert row is not None
        header, body = decode_head(row.body)
        reference = CheckpointRef(uuid, trial_id, steps, f"1/{trial_id}/1/{uuid}", "0" * 64)
        state = evolve(actor_type_at(address).decode_state(body), checkpoint=reference)
        head = encode_head(header, actor_type_at(address).encode_state(state))
        self.table.commit((Put(row.key, row.revision + 1, head, row.revision),))

    def put(self, partition: str, sort: str, fields: object) -> None:
        """Write a row directly, without the actor of the partition."""
        body = json.dumps(fields).encode()
        self.table.commit((Put(Key(partition, sort), 1, body, Expect.ANYTHING),))

    def add_other_data(self) -> None:
        """Add further rows and files of the experiment, and of experiment 2 with trial 9."""
        for trial_id in (*self.trials, 9):
            address = addresses.trial(trial_id)
            for sort in ("R#training#1", "E#1", "L#1", "D#1", "T#1"):
                self.put(address, sort, {})
            for place in (f"logs/{trial_id}/{trial_id}.1/0-4", f"metrics/{trial_id}/1234abcd"):
                self.objects.put(ObjectKey(place), b"text")
        self.write("tensorboard/1/1/events")
        self.write("tensorboard/2/9/events")

    def objects_left(self) -> list[str]:
        kept = chain(*map(self.objects.list_objects, (ObjectKey("logs"), ObjectKey("metrics"))))
        return [str(listed.key) for listed in kept]

    def request_retention(self, *kept: int) -> None:
        """Request a collection: best of all, best of each trial, latest of each trial."""
        self.engine.execute_command(EXPERIMENT, SettingsChanged(retention=Retention(*kept)))

    def request_deletion(self, experiment_id: int = 1) -> None:
        """Request the experiment's deletion."""
        self.engine.execute_command(addresses.experiment(experiment_id), DeleteRequested())

    def request_checkpoint_deletion(self, trial_id: int, steps: int) -> None:
        """Request the deletion of a checkpoint."""
        unwanted = CheckpointDeletionRequested((uuid_of(trial_id, steps),))
        self.engine.execute_command(addresses.trial(trial_id), unwanted)

    def warm_start(self, experiment_id: int, uuid: str) -> None:
        """Start an experiment from a checkpoint and kill the experiment."""
        trial_id = int(uuid[:8], 16)
        reference = CheckpointRef(uuid, trial_id, 0, f"1/{trial_id}/1/{uuid}", "0" * 64)
        submitted = experiment_submitted(random_plan(1), experiment_id=experiment_id)
        address = addresses.experiment(experiment_id)
        self.engine.execute_command(
            address, replace(submitted, config=CONFIG, warm_start=reference)
        )
        self.engine.execute_command(address, KillRequested())

    def work_off(self, passes_max: int = 50) -> None:
        """Run the collector and advance the clock until no request is pending; fail after
        `passes_max`.
        """
        for _ in range(passes_max):
            self.collector.collect()
            if not pending_requests(self.table):
                return
            self.now_ms += 60_000
        raise AssertionError(f"never done: {self.rows(COLLECTIONS)}")

    def checkpoint_states(self) -> dict[str, str]:
        """Return the states of all checkpoints by trial and steps, for example `4/10`."""
        states = {}
        for trial_id in self.trials:
            address = addresses.trial(trial_id)
            first = PARTS + CHECKPOINT_PARTS
            for row in self.table.query(address, first, f"{first}~").rows:
                record: Any = actor_type_at(address).decode_part(
                    row.key.sort.removeprefix(PARTS), row.body
                )
                name = f"{trial_id}/{record.checkpoint.steps_completed}"
                states[name] = record.state.value
        return states

    def kept_checkpoints(self) -> list[str]:
        """Return the checkpoints with a manifest, which must equal the COMPLETED checkpoints."""
        stored = sorted(
            f"{path.parts[-4]}/{int(path.parts[-2][-12:], 16)}"
            for path in self.root.rglob("manifest.json")
        )
        completed = [
            name for name, state in self.checkpoint_states().items() if state == "COMPLETED"
        ]
        assert sorted(completed) == stored
        return stored

    def rows(self, partition: str) -> list[str]:
        """Return the sort keys of a partition's rows."""
        return [row.key.sort for row in self.table.query(partition, " ", "\x7f").rows]


def uuid_of(trial_id: int, steps: int) -> str:
    """Return the UUID of a trial's checkpoint at a step."""
    return f"{trial_id:08x}-0000-4000-8000-{steps:012x}"
