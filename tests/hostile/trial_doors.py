"""Doors inside other requests: manifests of uploads, and lines and logs of trials."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.actors.messages.trial import CheckpointUploaded
from control_plane.actors.records import CheckpointRef
from tests.hostile.api_doors import BEGUN, MARK, RECORDED, SHA256, HostileCluster
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call


class ManifestDoor:
    """The upload of a checkpoint with a user's forged manifest."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._uploads = 0

    def manifest(self) -> dict[str, Any]:
        """Return the manifest of the next upload, which has no files."""
        return {
            "version": 1,
            "uuid": self._uuid,
            "cluster_id": self._cluster.services.cluster_id,
            "trial_id": 1,
            "steps_completed": 1,
            "files": {},
            "metadata": {"a": {"b": [1]}},
        }

    def complete(self, manifest: bytes) -> Answer:
        """Upload the manifest and complete the upload; return the answer."""
        path, digest = self._upload(manifest)
        return self._cluster.post(f"{path}/complete", {"manifest_sha256": digest})

    def record(self, manifest: bytes, metadata: Mapping[str, Any]) -> Answer:
        """Upload the manifest, and record the metadata unchecked, as older versions did.

        Return the answer to a request for the checkpoint.
        """
        path, digest = self._upload(manifest)
        uuid = path.rpartition("/")[2]
        checkpoint = CheckpointRef(uuid, 1, 1, f"1/1/0/{uuid}", digest)
        message = CheckpointUploaded(checkpoint, 0, 0, "user-1", metadata)
        self._cluster.services.engine.execute_command(addresses.trial(1), message)
        return self._cluster.get(f"/checkpoints/{uuid}")

    def _upload(self, manifest: bytes) -> tuple[str, str]:
        """Upload a manifest. Return the path of the upload, and the digest of the manifest."""
        uuid, digest = self._uuid, hashlib.sha256(manifest).hexdigest()
        self._uploads += 1
        begun = self._cluster.post("/checkpoint-uploads", {"trial_id": 1, "uuid": uuid})
        assert begun.status == 200, begun.body
        path = f"/checkpoint-uploads/1/{uuid}"
        query = f"content?path=manifest.json&sha256={digest}"
        token = TOKENS[Role.USER]
        sent = call(self._cluster.app, "PUT", f"{V1}{path}/{query}", token=token, body=manifest)
        assert sent.status < 300, sent.body
        return path, digest

    @property
    def _uuid(self) -> str:
        return f"{self._uploads:08x}-0000-4000-8000-00000000000f"


LINES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "metrics": ("0", metrics(3, "validation", loss=0.5, name="x", list=[1])),
    "rank_metrics": ("1", {**metrics(3, loss=0.5), "kind": "rank_metrics"}),
    "environment": ("0", {"kind": "environment", "python": "3", "packages": ["a==1"]}),
    "trial_metadata": ("0", {"kind": "trial_metadata", "metadata": {"a": {"b": [1]}}}),
    "progress": ("0", {"kind": "progress", "value": 0.5}),
    "checkpoint_intent": (
        "0",
        {"kind": "checkpoint_intent", "uuid": BEGUN, "steps_completed": 1, "path": "p"},
    ),
    "checkpoint": (
        "0",
        {
            "kind": "checkpoint",
            "uuid": "{uuid}",
            "steps_completed": 3,
            "path": "1/{trial}/{epoch}/{uuid}",
            "manifest_sha256": SHA256,
            "size_bytes": 1,
            "files": 1,
            "metadata": {"a": {"b": [1]}},
            "metric": 0.5,
        },
    ),
    "checkpoint_damage": (
        "0",
        {"kind": "checkpoint_damage", "uuid": RECORDED, "message": "m"},
    ),
    "completed": (
        "0",
        {"kind": "completed", "length": 10, "metric": None, "value": {"loss": 0.5}, "message": "m"},
    ),
    "early_exit": ("0", {"kind": "early_exit", "reason": "USER_REQUESTED_STOP"}),
    "exit": ("0", {"kind": "exit", "reason": "errored", "message": "m", "directive_revision": 0}),
    "container": ("agent", {"kind": "container", "state": "RUNNING"}),
    "agent_warning": ("agent", {"kind": "agent_warning", "message": "m"}),
    "exited": (
        "agent",
        {
            "kind": "exited",
            "reason": "errored",
            "code": 1,
            "directive_revision": 0,
            "message": "m",
            "notice": "n",
            "notice_outcome": "saved",
        },
    ),
}
"""A line of each kind that trials and agents report, with its writer: docs/trial-directory.md and
docs/agent-protocol.md.
"""


class LineDoor:
    """An agent with trials that report the lines of a test."""

    def __init__(self, hostile: HostileCluster) -> None:
        self._hostile = hostile
        self._agent = Agent(hostile.cluster, "hostile", slots=2)
        hostile.agents.append(self._agent)
        self._allocation = ""
        self._logged: dict[str, int] = {}
        self._checkpoints = 0

    def report(self, writer: str, line: bytes) -> Answer:
        """Report a line of a running allocation; the allocation still exists afterwards."""
        agent, allocation = self._agent, self._running()
        trial, _, epoch = allocation.partition(".")
        self._checkpoints += 1
        uuid = f"{self._checkpoints:08x}-0000-4000-8000-0000000000ff"
        for name, value in (("trial", trial), ("epoch", epoch), ("uuid", uuid)):
            line = line.replace(b"{%s}" % name.encode(), value.encode())
        offset = agent.offsets.get((allocation, writer), 0) + len(line) + 1
        agent.offsets[allocation, writer] = offset
        entry = {"allocation": allocation, "writer": writer, "offset": offset, "line": MARK}
        return self._sync({"reports": [entry]}, allocation, line)

    def log(self, text: bytes) -> Answer:
        """Send a piece of the log of a running allocation."""
        allocation = self._running()
        offset = self._logged.get(allocation, 0)
        self._logged[allocation] = offset + len(json.loads(text).encode("utf-8", "surrogatepass"))
        entry = {"allocation": allocation, "offset": offset, "text": MARK}
        return self._sync({"logs": [entry]}, allocation, text)

    def _sync(self, fields: dict[str, Any], allocation: str, text: bytes) -> Answer:
        """Send a call with this text of JSON in place of the mark."""
        agent, app = self._agent, self._hostile.cluster.app
        body = json.dumps({"epoch": agent.epoch, "known": agent.known, **fields}).encode()
        body = body.replace(json.dumps(MARK).encode(), text)
        headers = [("content-type", "application/json")]
        path = f"{V1}/agents/{agent.name}/sync"
        answer = call(app, "POST", path, token=agent.token, headers=headers, body=body)
        if answer.status == 200:
            desired = {one["allocation"]: one["state"] for one in answer.json["desired"]}
            self._allocation = allocation if desired.get(allocation) == "run" else ""
        return answer

    def _running(self) -> str:
        """Return a running allocation of the agent, from a new experiment if necessary."""
        if self._allocation:
            return self._allocation
        for _ in range(8):
            allocations = self._agent.take_work()
            if allocations:
                return allocations[0]
            assert self._hostile.cluster.create(CONFIG).status == 201
        raise AssertionError("the agent gets no work")
