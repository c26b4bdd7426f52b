"""An agent's call is accepted by the cluster for all trial output."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from control_plane.api.agent_requests import SyncBody, sync_requests
from control_plane.api.routes.agents import SYNC_BYTES_MAX
from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.sync.payload import pack_payload
from detcloud.shared.json_depth import JSON_DEPTH_MAX

NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.sampled_from([2**53, 2**63, 2**64, -(2**63) - 1]),
)
# With surrogates, which `json` writes as escapes.
TEXTS = st.text(st.characters(), max_size=40)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(["metrics", "checkpoint", "exit", "environment", "exited", "progress"])
OBJECTS = st.builds(
    lambda kind, rest: {**rest, "kind": kind}, KINDS, st.dictionaries(TEXTS, VALUES, max_size=4)
)
# Written unchanged: invalid JSON, numbers beyond floats, and values of the largest depth.
ODD_LINES = st.sampled_from(
    [
        b'{"kind": "metrics", "value": 1e999}',
        b'{"kind": "metrics", "value": -1e-999, "value": 1}',
        b'{"kind": "metrics", "value": ' + b"9" * 5_000 + b"}",
        b'{"kind": "\\ud800"}',
        b'{"kind": "metrics", "\\u0000": "\\udfff\\ud800"}',
        b"[" * (JSON_DEPTH_MAX + 1) + b"]" * (JSON_DEPTH_MAX + 1),
        b'{"a":' * JSON_DEPTH_MAX + b"1" + b"}" * JSON_DEPTH_MAX,
        b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
        b'{"name": "' + b"x" * (256 * 1024 - 12) + b'"}',
        b'{"name": "' + "\u2028".encode() * 80_000 + b'"}',
    ]
)
LINES = st.one_of(OBJECTS.map(lambda fields: json.dumps(fields).encode()), ODD_LINES, st.binary())
LOGS = st.one_of(
    st.binary(max_size=400),
    st.text(st.characters(), max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from([bytes(400_000), b"\x1b" * 300_000, "€".encode() * 100_000, b"\xff" * 70_000]),
)


@settings(deadline=None, max_examples=50)
@given(LINES, st.lists(LINES, max_size=4), LOGS, TEXTS)
@example(b"{}", [], b"", "\ud800")
def test_cluster_accepts_every_call_of_an_agent(
    first: bytes, more: list[bytes], log: bytes, message: str
) -> None:
    with TemporaryDirectory() as folder:
        directory = AllocationDirectory(Path(folder), "4.1")
        directory.create()
        content = b"".join(line.replace(b"\n", b" ") + b"\n" for line in (first, *more))
        (directory.out / "report-0.jsonl").write_bytes(content)
        directory.log.write_bytes(log)
        allocation = Allocation(directory, ProcessRuntime())
        allocation.acked = {}
        allocation.scan_output()
        allocation.record_environment({"image": message})
        allocation.record_failure("lost", message)
        payload = pack_payload([allocation])
        assert payload.reports
        envelope = {"epoch": 1, "call": 1, "seen": 0, "incarnation": "", "wait_ms": 0}
        encoded = payload.encode_body(envelope, ["4.1"])
        assert len(encoded) <= SYNC_BYTES_MAX
        requests = sync_requests(SyncBody.model_validate(json.loads(encoded)))
        taken = sum(len(request.reports) for request in requests)
        assert taken == len(payload.reports)
