"""Kills trials while they store checkpoints, the server while it records them, and the collector
while it deletes them, at drawn moments: no checkpoint that the cluster knows is lost or damaged,
and nothing is left behind.

Moments are drawn from what a machine does, not from what it takes a quiet one: a trial is killed
after so many commits, and then within the time that one takes here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.checkpoint_gc.collector import Collector, pending_requests
from control_plane.checkpoint_gc.stores import Stores
from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.engine.engine import Engine
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import StateTable
from detcloud import core
from detcloud.shared import upload_parts
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.storage import build_store
from tests.patience import PATIENCE
from tests.unit.api.agent_side import Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import call

KILLS_OF_TRIAL = 20
# Where collectors are to be killed, a trial has as many checkpoints of fewer runs.
KILLS_OF_COLLECTED_TRIAL = 3
KEPT = 2
# One of them large, each of either kind.
REHEARSED_CHECKPOINTS = 7
# A third of the trials are killed before the first commit, and a third after two.
COMMITS_MAX = 2
# How long a trial takes to its first commit, a server to record it and a collector to delete
# anything, before any was seen to.
COMMIT_SECONDS_FIRST, RECORD_SECONDS_FIRST, COLLECT_SECONDS_FIRST = 0.5, 0.1, 0.05
# Collectors that have lived for so long in turns without an end make no progress.
COLLECTORS_MAX = 400
# A round in which the collector does not end in this time has failed.
END_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.002
PARTS_MAX = 4
PART_BYTES_MAX = 200_000
# Stores send files beyond 8 MiB in parts; every so many checkpoints have one.
LARGE_BYTES, LARGE_EVERY = 9 << 20, 7
LARGE_PART_BYTES = 1 << 20
STEPS_FILE, LARGE_FILE, METADATA_FILE = "steps", "large.bin", "metadata.json"
BEGUN = "begun"
# Its children are forked from a clean process in which all of it was done once.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.conformance.checkpoint_kills_rehearsed"])


@dataclass
class KillCounts:
    """The kills that hit a process which was running, and the checkpoints they were survived by."""

    of_trials: int = 0
    of_servers: int = 0
    of_collectors: int = 0
    checkpoints: int = 0
    incomplete: int = 0

    @property
    def total(self) -> int:
        """All kills."""
        return self.of_trials + self.of_servers + self.of_collectors


@dataclass
class CheckpointKills:
    """A cluster whose trials store their checkpoints in one store; `folder` holds all else, but for
    the state, which is where `open_table` finds it in any process.

    `environment` is what a process needs to reach the store, `find_hidden` names what lies in it
    and no listing shows. Trials are killed after `commits_max` checkpoints at most, and the first
    collector within `collect_seconds`.
    """

    folder: Path
    storage: Mapping[str, str]
    random: random.Random
    environment: Mapping[str, str] = field(default_factory=dict)
    find_hidden: Callable[[], list[str]] = list
    open_table: Callable[[], StateTable] | None = None
    commits_max: int = COMMITS_MAX
    collect_seconds: float = COLLECT_SECONDS_FIRST
    counts: KillCounts = field(default_factory=KillCounts)

    def __post_init__(self) -> None:
        if self.open_table is None:
            self.open_table = partial(open_sqlite, self.folder)
        self.cluster: Cluster = build_cluster(self.folder, table=self.open_table())
        self.agent = Agent(self.cluster, slots=1)
        self._commit_seconds = COMMIT_SECONDS_FIRST
        self._record_seconds = RECORD_SECONDS_FIRST

    def run(self, kills: int) -> KillCounts:
        """Run experiments, one after the other, until there were so many kills. Raises
        AssertionError for what was lost, damaged or left behind.
        """
        while self.counts.total < kills:
            self._run_experiment(min(KILLS_OF_TRIAL, kills - self.counts.total))
        return self.counts

    def run_collections(self, kills: int) -> KillCounts:
        """Run experiments until so many of the kills hit a collector. Errors as for `run`."""
        while self.counts.of_collectors < kills:
            self._run_experiment(KILLS_OF_COLLECTED_TRIAL)
        return self.counts

    def rehearse(self) -> None:
        """Do once, in this process, all that others are killed in."""
        experiment_id = self._create()
        entry = self._next_allocation()
        place = self._make_place(entry)
        train(_begin, place, self.environment, REHEARSED_CHECKPOINTS)
        request = self._request(entry["allocation"], _report_lines(place))
        assert self.open_table is not None
        record(_begin, self.folder, self.open_table, self.agent.token, request)
        self._advance_actors(int(entry["allocation"].partition(".")[0]))
        self._end(experiment_id)
        collect(_begin, self.folder, self.open_table, self.environment)

    def _run_experiment(self, kills: int) -> None:
        experiment_id = self._create()
        for _ in range(kills):
            self._train_until_killed()
        (trial,) = self._items(f"experiments/{experiment_id}/trials")
        before = self._completed_checkpoints(trial["id"])
        for uuid, path in before.items():
            self._check_checkpoint(path, f"{uuid} before the collection")
        self.counts.checkpoints += len(before)
        self._end(experiment_id)
        self._collect()
        kept = self._completed_checkpoints(trial["id"])
        assert len(kept) == min(KEPT, len(before)), f"{len(kept)} of {len(before)} are left"
        for uuid, path in kept.items():
            self._check_checkpoint(path, f"{uuid} after the collection")
        left = {path.rpartition("/")[0] for path in self._list_files(experiment_id)}
        assert left == set(kept.values()), f"{sorted(left ^ set(kept.values()))} are left or gone"
        answer = self._call("DELETE", f"experiments/{experiment_id}")
        assert answer.status < 300, answer.body
        self._collect()
        assert self._call("GET", f"experiments/{experiment_id}").status == 404
        assert self._list_files(experiment_id) == []
        assert self.find_hidden() == []

    def _create(self) -> int:
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

    def _train_until_killed(self) -> None:
        """Let an allocation of the trial store checkpoints until it is killed."""
        entry = self._next_allocation()
        place = self._make_place(entry)
        error = _run_killed(partial(self._wait_for_commits, place), train, place, self.environment)
        assert error is None, f"{entry['allocation']} ended by itself: {error}"
        self.counts.of_trials += 1
        lines = _report_lines(place)
        begun = sum(line["kind"] == "checkpoint_intent" for line in lines)
        self.counts.incomplete += begun - _count_commits(place)
        self._record(entry["allocation"], lines)

    def _make_place(self, entry: Mapping[str, Any]) -> Path:
        """The new folder of a trial's allocation."""
        place = self.folder / f"trial-{entry['allocation']}"
        (place / "in").mkdir(parents=True)
        (place / "code").mkdir()
        spec = {**entry["spec"], "slots": [0], "storage": dict(self.storage)}
        (place / "in" / "spec.json").write_text(json.dumps(spec))
        (place / "in" / "directives.json").write_text(json.dumps(entry["directives"]))
        return place

    def _wait_for_commits(self, place: Path, process: BaseProcess) -> None:
        """Wait until a trial has committed so many checkpoints as are drawn, and then for a part of
        the time that one takes.
        """
        began = time.monotonic()
        until = began + END_SECONDS_MAX * PATIENCE
        for number in range(self.random.randint(0, self.commits_max)):
            while process.is_alive() and _count_commits(place) <= number:
                assert time.monotonic() < until, f"{place} commits nothing"
                time.sleep(LOOK_SECONDS)
            if number == 0:
                self._commit_seconds = time.monotonic() - began
        process.join(self.random.uniform(0, self._commit_seconds))

    def _record(self, allocation: str, lines: list[dict[str, Any]]) -> None:
        """Report the lines of a killed trial to a server that is killed, and then once more."""
        request = self._request(allocation, lines)
        began = time.monotonic()
        moment = self.random.uniform(0, self._record_seconds)
        error = _run_killed(moment, record, self.folder, self.open_table, self.agent.token, request)
        if error is None:
            self.counts.of_servers += 1
            # Whoever is always killed early would never be seen to end.
            self._record_seconds *= 1.1
        else:
            assert error == "", f"a server failed: {error}"
            self._record_seconds = time.monotonic() - began
        self._set_clock()
        answer = self.agent.sync(reports=request["reports"])
        assert answer.status == 200, answer.body
        self._advance_actors(int(allocation.partition(".")[0]))

    def _request(self, allocation: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
        """A report of the agent's about a trial that was killed."""
        exited = {"kind": "exited", "reason": "errored", "code": None, "signal": 9, "message": ""}
        entries = self.agent.entries(allocation, *lines)
        entries += self.agent.entries(allocation, exited, writer="agent")
        sync = {"epoch": self.agent.epoch, "seen": self.agent.seen, "known": self.agent.known}
        return {**sync, "reports": entries}

    def _advance_actors(self, trial_id: int) -> None:
        """Do what the tick does for messages whose receivers were to be advanced by a server that
        was killed.
        """
        engine = self.cluster.services.engine
        trial = addresses.trial(trial_id)
        experiment = addresses.experiment(engine.read_state(trial).experiment_id)
        pool, agent = addresses.pool("default"), addresses.agent(self.agent.name)
        engine.advance_until_idle([trial, experiment, pool, agent])

    def _next_allocation(self) -> dict[str, Any]:
        self._set_clock()
        self.agent.known = []
        (entry,) = [one for one in self.agent.sync().json["desired"] if one["state"] == "run"]
        self.agent.known = [entry["allocation"]]
        return dict(entry)

    def _end(self, experiment_id: int) -> None:
        """Kill the experiment, whose trial has an allocation that never began."""
        entry = self._next_allocation()
        answer = self.cluster.post(f"/experiments/{experiment_id}/kill", {})
        assert answer.status < 300, answer.body
        self.agent.report(
            entry["allocation"],
            {"kind": "exited", "reason": "killed", "code": None},
            writer="agent",
        )
        assert self._call("GET", f"experiments/{experiment_id}").json["state"] == "CANCELED"

    def _collect(self) -> None:
        """Let collectors, each of which is killed, do all that is to be collected."""
        for number in range(COLLECTORS_MAX):
            # Each lives a little longer, so that some are killed in every part of their work, and
            # that one comes to its end however busy the machine is.
            longest = self.collect_seconds * (1 + number / 4) * 1.01**number
            moment = self.random.uniform(0, longest)
            error = _run_killed(moment, collect, self.folder, self.open_table, self.environment)
            if error is None:
                self.counts.of_collectors += 1
                continue
            assert error == "", f"a collector failed: {error}"
            return
        raise AssertionError(f"{COLLECTORS_MAX} collectors came to no end")

    def _completed_checkpoints(self, trial_id: int) -> dict[str, str]:
        """The folders of the trial's checkpoints that the cluster has, by UUID."""
        found = self._items(f"trials/{trial_id}/checkpoints")
        done = [one for one in found if one["state"] == "COMPLETED"]
        files = {one["uuid"]: self._items(f"checkpoints/{one['uuid']}/files") for one in done}
        assert all(files.values()), f"a checkpoint has no files: {files}"
        listed = self._list_files(int(done[0]["experiment_id"])) if done else []
        folders = {path.split("/")[3]: "/".join(path.split("/")[:4]) for path in listed}
        return {uuid: folders[uuid] for uuid in files}

    def _check_checkpoint(self, path: str, what: str) -> None:
        store = open_checkpoint_files(dict(self.storage))
        manifest = json.loads(_read(store, f"{path}/{MANIFEST}"))
        content = {name: _read(store, f"{path}/{name}") for name in manifest["files"]}
        for name, entry in manifest["files"].items():
            digest = hashlib.sha256(content[name]).hexdigest()
            assert (len(content[name]), digest) == (entry["size"], entry["sha256"]), what
        steps = int(content[STEPS_FILE])
        _check_content(content, steps)

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


def train(
    begin: Callable[[], None],
    place: Path,
    environment: Mapping[str, str],
    steps_max: int | None = None,
) -> None:
    """Go on from the trial's latest checkpoint, and store one after the other, up to one of so many
    steps or without an end.
    """
    os.environ.update({**environment, "DETCLOUD_TRIAL_DIR": str(place)})
    # So that HDFS has the large files in parts, too.
    upload_parts.SIGNED_PART_BYTES = LARGE_PART_BYTES
    os.chdir(place / "code")
    begin()
    with core.init() as context:
        steps, latest = 0, context.info.latest_checkpoint
        if latest is not None:
            with context.checkpoint.restore_path(latest) as folder:
                steps = int((folder / STEPS_FILE).read_text())
                found = {path.name: path.read_bytes() for path in folder.iterdir()}
            _check_content(found, steps)
        while steps_max is None or steps < steps_max:
            steps += 1
            metadata = {"steps_completed": steps}
            # Every second one behind the next, as trial classes have them.
            behind = steps % 2 == 0
            with context.checkpoint.store_path(metadata, asynchronous=behind) as (folder, _):
                for name, content in checkpoint_content(steps):
                    (folder / name).write_bytes(content)


def record(
    begin: Callable[[], None],
    folder: Path,
    open_table: Callable[[], StateTable],
    token: str,
    request: Mapping[str, Any],
) -> None:
    """Record what an agent reports, as a server that has just begun."""
    cluster = build_cluster(folder, table=open_table())
    cluster.clock.ms = time.time_ns() // 1_000_000
    begin()
    answer = call(cluster.app, "POST", f"{V1}/agents/node/sync", token=token, content=dict(request))
    assert answer.status == 200, answer.body


def collect(
    begin: Callable[[], None],
    folder: Path,
    open_table: Callable[[], StateTable],
    environment: Mapping[str, str],
) -> None:
    """Collect until nothing is left to be collected."""
    os.environ.update(environment)
    table = open_table()
    engine = Engine(table, lambda: time.time_ns() // 1_000_000)
    objects = DirectoryObjectStore(folder / "objects", HmacUrlSigner(b"s" * 32))
    checkpoints = Directory(type="directory", container_path=str(folder / "checkpoints"))
    collector = Collector(Stores(engine, objects, checkpoints, cluster_id="cluster-1"))
    until = time.monotonic() + END_SECONDS_MAX * PATIENCE
    # Types are imported when they are first met, which takes longer than a collection.
    for address in (addresses.experiment(1), addresses.trial(1)):
        engine.read_state(address)
    engine.read_part(addresses.experiment(1), "definition")
    begin()
    while pending_requests(table):
        assert time.monotonic() < until, f"left to collect: {pending_requests(table)}"
        time.sleep(collector.pause_seconds)
        collector.collect()


def checkpoint_content(steps: int) -> Iterator[tuple[str, bytes]]:
    """The files of the checkpoint after so many steps, by name."""
    sizes = random.Random(steps)
    yield STEPS_FILE, str(steps).encode()
    for number in range(sizes.randint(1, PARTS_MAX)):
        size = sizes.randint(0, PART_BYTES_MAX)
        yield f"part-{number}.bin", hashlib.shake_128(f"{steps}/{number}".encode()).digest(size)
    if steps % LARGE_EVERY == 0:
        block = hashlib.shake_128(f"{steps}/large".encode()).digest(1 << 20)
        yield LARGE_FILE, block * (LARGE_BYTES >> 20)


def _check_content(found: Mapping[str, bytes], steps: int) -> None:
    """Check the files that a trial wrote; beside them its metadata are a file too."""
    found = {name: content for name, content in found.items() if name != METADATA_FILE}
    expected = dict(checkpoint_content(steps))
    assert found.keys() == expected.keys(), f"{[*found]} after {steps} steps, not {[*expected]}"
    wrong = [name for name, content in expected.items() if found[name] != content]
    assert not wrong, f"{wrong} are not those after {steps} steps"


def _begin() -> None:
    """Tell nobody that the work begins."""


def open_sqlite(folder: Path) -> StateTable:
    """Open the state in a file of a folder."""
    return SqliteTable(folder / "state.db", synchronous="NORMAL")


def _run_killed(
    moment: float | Callable[[BaseProcess], None], work: Callable[..., None], *arguments: Any
) -> str | None:
    """Run `work` in a process of its own that is killed so many seconds after it began, or when
    `moment` has waited.

    None: it was killed; else what it failed with, empty if it came to its end.
    """
    reader, writer = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_report_failure, args=(writer, work, *arguments))
    process.start()
    writer.close()
    said = reader.recv()
    if callable(moment):
        moment(process)
    else:
        process.join(moment)
    process.kill()
    process.join()
    with reader:
        if process.exitcode == -signal.SIGKILL:
            return None
        if not process.exitcode:
            return ""
        return str(reader.recv() if said == BEGUN else said)


def _report_failure(writer: Any, work: Callable[..., None], *arguments: Any) -> None:
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            work(lambda: writer.send(BEGUN), *arguments)
        except BaseException:
            writer.send(traceback.format_exc())
            os._exit(1)
    os._exit(0)


def _report_lines(place: Path) -> list[dict[str, Any]]:
    """The whole lines of the trial's report: the last one may be cut off."""
    file = place / "out" / "report-0.jsonl"
    text = file.read_bytes() if file.exists() else b""
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def _count_commits(place: Path) -> int:
    """How many checkpoints a trial has reported as stored."""
    return sum(line["kind"] == "checkpoint" for line in _report_lines(place))


def _read(store: CheckpointFiles, path: str) -> bytes:
    return b"".join(store.open_file(path).blocks)


def _config_fields(storage: Mapping[str, str]) -> dict[str, str]:
    """The configuration's `checkpoint_storage` for a specification's `storage`."""
    if storage["type"] == "shared_fs":
        return {"type": "shared_fs", "host_path": storage["path"]}
    if storage["type"] == "directory":
        return {"type": "directory", "container_path": storage["path"]}
    return dict(storage)
