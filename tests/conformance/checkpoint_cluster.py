"""A cluster with trials that store checkpoints in a single store, and the checks at the end.

No checkpoint that the cluster lists is lost or damaged, and no file remains after the deletion.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files
from control_plane.state.table import StateTable
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.storage import build_store
from tests.conformance.kill_victims import (
    STEPS_FILE,
    check_content,
    collect,
    open_sqlite,
    record,
    train,
)
from tests.unit.api.agent_side import Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import call

KEPT = 2
# Enough for a large checkpoint, and for checkpoints of either kind.
REHEARSED_CHECKPOINTS = 7


@dataclass
class CheckpointCluster:
    """A cluster and the store of its checkpoints.

    `folder` has all other files; `open_table` opens the state table in any process. `environment`
    has the variables that a process needs for the store. `find_hidden` returns the names of files
    in the store that listings omit.
    """

    folder: Path
    storage: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    find_hidden: Callable[[], list[str]] = list
    open_table: Callable[[], StateTable] | None = None

    def __post_init__(self) -> None:
        if self.open_table is None:
            self.open_table = partial(open_sqlite, self.folder)
        self.cluster: Cluster = build_cluster(self.folder, table=self.open_table())
        self.agent = Agent(self.cluster, slots=1)

    def rehearse(self) -> None:
        """Do once, in this process, all work during which victim processes are killed."""
        experiment_id = self.create()
        entry = self.next_allocation()
        place = self.make_place(entry)
        train(_enter_nothing, place, self.environment, REHEARSED_CHECKPOINTS)
        request = self.exit_request(entry["allocation"], report_lines(place))
        assert self.open_table is not None
        record(_enter_nothing, self.folder, self.open_table, self.agent.token, request)
        self._advance_actors(int(entry["allocation"].partition(".")[0]))
        self._end(experiment_id)
        self.collect_all()

    def create(self) -> int:
        """Create an experiment with a trial that trains without an end; return the id."""
        self._set_clock()
        config = {
            "name": "kills",
            "entrypoint": "python train.py",
            "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1_000_000}},
            "max_restarts": 100_000,
            "checkpoint_storage": {
                **_config_fields(self.storage),
                "save_experiment_best": 0,
                "save_trial_best": 0,
                "save_trial_latest": KEPT,
            },
        }
        answer = self.cluster.create(json.dumps(config))
        assert answer.status == 201, answer.body
        return int(answer.json["id"])

    def next_allocation(self) -> dict[str, Any]:
        """Return the trial's next run as the agent receives the run."""
        self._set_clock()
        self.agent.known = []
        (entry,) = [one for one in self.agent.sync().json["desired"] if one["state"] == "run"]
        self.agent.known = [entry["allocation"]]
        return dict(entry)

    def make_place(
        self, entry: Mapping[str, Any], storage: Mapping[str, str] | None = None
    ) -> Path:
        """Create the folder of a trial's allocation.

        `storage` replaces the cluster's store in the specification.
        """
        place = self.folder / f"trial-{entry['allocation']}"
        (place / "in").mkdir(parents=True)
        (place / "code").mkdir()
        spec = {**entry["spec"], "slots": [0], "storage": dict(storage or self.storage)}
        (place / "in" / "spec.json").write_text(json.dumps(spec))
        (place / "in" / "directives.json").write_text(json.dumps(entry["directives"]))
        return place

    def exit_request(self, allocation: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
        """Return an agent's report about a killed trial."""
        exited = {"kind": "exited", "reason": "errored", "code": None, "signal": 9, "message": ""}
        entries = self.agent.entries(allocation, *lines)
        entries += self.agent.entries(allocation, exited, writer="agent")
        sync = {"epoch": self.agent.epoch, "seen": self.agent.seen, "known": self.agent.known}
        return {**sync, "reports": entries}

    def report_exit(self, allocation: str, request: Mapping[str, Any]) -> None:
        """Report a trial's exit, and advance the receivers of messages as the tick does.

        The server that should have advanced the receivers may have been killed.
        """
        self._set_clock()
        answer = self.agent.sync(reports=request["reports"])
        assert answer.status == 200, answer.body
        self._advance_actors(int(allocation.partition(".")[0]))

    def check_to_the_end(self, experiment_id: int) -> int:
        """Check all checkpoints of an experiment, and return the number of checkpoints.

        End the experiment, and check the store again after the collection and after the deletion.
        """
        (trial,) = self._items(f"experiments/{experiment_id}/trials")
        before = self.completed_checkpoints(trial["id"])
        for uuid, path in before.items():
            self._check_checkpoint(path, f"{uuid} before the collection")
        self._end(experiment_id)
        self.collect_all()
        kept = self.completed_checkpoints(trial["id"])
        assert len(kept) == min(KEPT, len(before)), f"{len(kept)} of {len(before)} are left"
        for uuid, path in kept.items():
            self._check_checkpoint(path, f"{uuid} after the collection")
        left = {path.rpartition("/")[0] for path in self._list_files(experiment_id)}
        assert left == set(kept.values()), f"{sorted(left ^ set(kept.values()))} are left or gone"
        answer = self._call("DELETE", f"experiments/{experiment_id}")
        assert answer.status < 300, answer.body
        self.collect_all()
        assert self._call("GET", f"experiments/{experiment_id}").status == 404
        assert self._list_files(experiment_id) == []
        assert self.find_hidden() == []
        return len(before)

    def collect_all(self) -> None:
        """Collect all garbage, in this process."""
        assert self.open_table is not None
        collect(_enter_nothing, self.folder, self.open_table, self.environment)

    def completed_checkpoints(self, trial_id: int) -> dict[str, str]:
        """Return the folders of the trial's complete checkpoints, by UUID."""
        checkpoints = self._items(f"trials/{trial_id}/checkpoints")
        done = [one for one in checkpoints if one["state"] == "COMPLETED"]
        files = {one["uuid"]: self._items(f"checkpoints/{one['uuid']}/files") for one in done}
        assert all(files.values()), f"a checkpoint has no files: {files}"
        listed = self._list_files(int(done[0]["experiment_id"])) if done else []
        folders = {path.split("/")[3]: "/".join(path.split("/")[:4]) for path in listed}
        return {uuid: folders[uuid] for uuid in files}

    def _end(self, experiment_id: int) -> None:
        """Kill the experiment; its trial has an allocation that never began."""
        entry = self.next_allocation()
        answer = self.cluster.post(f"/experiments/{experiment_id}/kill", {})
        assert answer.status < 300, answer.body
        self.agent.report(
            entry["allocation"],
            {"kind": "exited", "reason": "killed", "code": None},
            writer="agent",
        )
        assert self._call("GET", f"experiments/{experiment_id}").json["state"] == "CANCELED"

    def _check_checkpoint(self, path: str, what: str) -> None:
        store = open_checkpoint_files(dict(self.storage))
        manifest = json.loads(_read(store, f"{path}/{MANIFEST}"))
        content = {name: _read(store, f"{path}/{name}") for name in manifest["files"]}
        for name, entry in manifest["files"].items():
            digest = hashlib.sha256(content[name]).hexdigest()
            assert (len(content[name]), digest) == (entry["size"], entry["sha256"]), what
        steps = int(content[STEPS_FILE])
        check_content(content, steps)

    def _list_files(self, experiment_id: int) -> list[str]:
        return sorted(build_store(dict(self.storage)).list(str(experiment_id)))

    def _items(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            answer = self._call("GET", f"{path}?limit=100{cursor}")
            assert answer.status == 200, (path, answer.body)
            if isinstance(answer.json, list):
                return list(answer.json)
            found += answer.json["items"]
            if not answer.json.get("next_cursor"):
                return found
            cursor = f"&cursor={answer.json['next_cursor']}"

    def _call(self, method: str, path: str) -> Any:
        self._set_clock()
        return call(self.cluster.app, method, f"{V1}/{path}", token=TOKENS[Role.USER])

    def _set_clock(self) -> None:
        self.cluster.clock.ms = time.time_ns() // 1_000_000

    def _advance_actors(self, trial_id: int) -> None:
        engine = self.cluster.services.engine
        trial = addresses.trial(trial_id)
        experiment = addresses.experiment(engine.read_state(trial).experiment_id)
        pool, agent = addresses.pool("default"), addresses.agent(self.agent.name)
        engine.advance_until_idle([trial, experiment, pool, agent])


def report_lines(place: Path) -> list[dict[str, Any]]:
    """Return the complete lines of the trial's report, without a truncated last line."""
    file = place / "out" / "report-0.jsonl"
    text = file.read_bytes() if file.exists() else b""
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def count_commits(lines: list[dict[str, Any]]) -> int:
    """Return the number of checkpoints that a trial reported as stored."""
    return sum(line["kind"] == "checkpoint" for line in lines)


def _enter_nothing(phase: str) -> None:
    """Do nothing at the begin of a phase."""


def _read(store: CheckpointFiles, path: str) -> bytes:
    return b"".join(store.open_file(path).blocks)


def _config_fields(storage: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration's `checkpoint_storage` for a specification's `storage`."""
    if storage["type"] == "shared_fs":
        return {"type": "shared_fs", "host_path": storage["path"]}
    if storage["type"] == "directory":
        return {"type": "directory", "container_path": storage["path"]}
    return dict(storage)
