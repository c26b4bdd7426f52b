"""The payload of a sync call: limits, and the order of lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from detcloud.agent.allocation.trial_reports import ReportLine, parse_line, warning_line
from detcloud.agent.sync.payload import (
    ALLOCATIONS_MAX,
    CALL_BYTES_MAX,
    ENTRIES_MAX,
    FairPacker,
    SyncPayload,
    pack_payload,
)


@dataclass
class UnsentAllocation:
    """Allocation with unsent lines by writer and unsent log text."""

    allocation: str
    by_writer: dict[str, list[ReportLine]] = field(default_factory=dict)
    text: str = ""
    has_priority: bool = False

    def writers(self) -> Sequence[str]:
        return list(self.by_writer)

    def lines(self, writer: str, after: int | None, bytes_max: int) -> list[ReportLine]:
        return [line for line in self.by_writer[writer] if line.offset > (after or 0)]

    def read_log(self, bytes_max: int) -> tuple[int, str, bool]:
        return 0, self.text[:bytes_max], len(self.text) > bytes_max

    def log_marks(self, start: int, end: int) -> list[tuple[int, int]]:
        return [(start, 7), (end - 1, 9)] if end > 1 else []


def lines(*kinds: str, filler: int = 0) -> list[ReportLine]:
    texts = [json.dumps({"kind": kind, "filler": "x" * filler}).encode() for kind in kinds]
    return [parse_line(text, (n + 1) * 1000) for n, text in enumerate(texts)]


def sent_kinds(payload: SyncPayload) -> list[tuple[str, str, str]]:
    reports = json.loads(payload.encode_body({}, []))["reports"]
    return [(r["allocation"], r["writer"], r["line"]["kind"]) for r in reports]


def test_body_follows_the_protocol() -> None:
    payload = pack_payload([UnsentAllocation("4.1", {"0": lines("completed")}, text="hé")])
    body: dict[str, Any] = json.loads(payload.encode_body({"epoch": 3, "seen": 17}, ["5.1", "4.1"]))
    assert body == {
        "epoch": 3,
        "seen": 17,
        "known": ["4.1", "5.1"],
        "reports": [
            {
                "allocation": "4.1",
                "writer": "0",
                "offset": 1000,
                "line": {"kind": "completed", "filler": ""},
            }
        ],
        "logs": [{"allocation": "4.1", "offset": 0, "text": "hé", "marks": [[0, 7], [2, 9]]}],
        "more": False,
    }
    # The log's next offset counts bytes: h has 1 byte, é has 2.
    assert payload.sent == {("4.1", "0"): 1000, ("4.1", "log"): 3}


def test_payload_without_lines_is_empty() -> None:
    assert pack_payload([UnsentAllocation("4.1", {"agent": []})]).is_empty


def test_exited_is_the_last_line_of_an_allocation() -> None:
    own = lines("container", "exited")
    payload = pack_payload(
        [UnsentAllocation("4.1", {"agent": own, "0": lines("exit"), "1": lines("exit")})]
    )
    assert [kind for _, _, kind in sent_kinds(payload)] == ["container", "exit", "exit", "exited"]


def test_exited_waits_for_omitted_reports() -> None:
    much = lines(*["metrics"] * 10, filler=200_000)
    payload = pack_payload([UnsentAllocation("4.1", {"agent": lines("exited"), "0": much})])
    # Five of ten lines with 200 KB fit into 1 MiB.
    assert [kind for _, _, kind in sent_kinds(payload)] == ["metrics"] * 5
    assert payload.more


def test_exited_waits_for_the_rest_of_the_log() -> None:
    payload = pack_payload(
        [UnsentAllocation("4.1", {"agent": lines("exited")}, text="x" * 200_000)]
    )
    assert sent_kinds(payload) == []
    assert len(payload.logs) == 1
    assert payload.more


def test_a_call_stays_within_a_mebibyte() -> None:
    waiting = [
        UnsentAllocation(
            f"{n}.1", {"0": lines(*["metrics"] * 20, filler=20_000)}, text="\x01" * 100_000
        )
        for n in range(9)
    ]
    payload = pack_payload(waiting)
    known = [source.allocation for source in waiting]
    assert (
        900_000
        < len(payload.encode_body({"epoch": 1, "call": 1, "seen": 1, "wait_ms": 0}, known))
        <= CALL_BYTES_MAX
    )
    assert payload.more


def test_text_that_grows_when_escaped_is_sent_in_part() -> None:
    # 128 KiB of control characters take six bytes each; a room of 100 KB holds less than 17 KB.
    payload = SyncPayload(bytes_max=100_000)
    payload.add_allocation(UnsentAllocation("4.1", text="\x01" * 200_000))
    assert 0 < len(payload.logs[0]) <= 100_000
    assert payload.more


def test_a_call_carries_30_allocations_with_priority_first() -> None:
    waiting = [UnsentAllocation(f"{n}.1", {"0": lines("metrics")}) for n in range(40)]
    waiting[39].has_priority = True
    payload = pack_payload(waiting)
    named = [allocation for allocation, _, _ in sent_kinds(payload)]
    assert len(named) == ALLOCATIONS_MAX
    assert named[:2] == ["39.1", "0.1"]
    assert payload.more


def test_number_of_entries_is_limited() -> None:
    payload = pack_payload(
        [UnsentAllocation("4.1", {"0": lines("a", "b", "c")}, text="log")], entries_max=2
    )
    assert [kind for _, _, kind in sent_kinds(payload)] == ["a", "b"]
    assert payload.logs == []
    assert payload.more


def test_a_backlog_is_divided_over_calls() -> None:
    source = UnsentAllocation("4.1", {"0": lines(*["checkpoint"] * (2 * ENTRIES_MAX + 1))})
    counts = []
    while source.by_writer["0"]:
        payload = pack_payload([source])
        counts.append(payload.entry_count)
        assert payload.more == (len(counts) < 3)
        sent = payload.sent["4.1", "0"]
        source.by_writer["0"] = [line for line in source.by_writer["0"] if line.offset > sent]
    assert counts == [ENTRIES_MAX, ENTRIES_MAX, 1]


def test_skipped_bytes_per_call_are_limited() -> None:
    # The share of an allocation is a piece of 16 MiB; a call of 64 MiB has four pieces.
    def endless(allocation: str) -> UnsentAllocation:
        skipped = [warning_line(n, "skipped", 16 << 20) for n in range(1, 10)]
        return UnsentAllocation(allocation, {"agent": lines("exited"), "0": skipped})

    payload = pack_payload([endless(f"{number}.1") for number in range(6)])
    assert [kind for _, _, kind in sent_kinds(payload)] == ["agent_warning"] * 4
    assert payload.more


def test_endless_lines_do_not_delay_other_allocations() -> None:
    skipped = [warning_line(n, "skipped", 16 << 20) for n in range(1, 10)]
    endless = UnsentAllocation("4.1", {"0": skipped})
    neighbour = UnsentAllocation("5.1", {"0": lines("metrics", "metrics")})
    sent = sent_kinds(pack_payload([endless, neighbour]))
    assert [(allocation, kind) for allocation, _, kind in sent] == [
        ("4.1", "agent_warning"),
        ("5.1", "metrics"),
        ("5.1", "metrics"),
    ]


def test_packer_rotates_over_busy_allocations() -> None:
    waiting = [UnsentAllocation(f"{n}.1", {"0": lines("metrics")}) for n in range(70)]
    turns = FairPacker()
    packed = [{allocation for allocation, _ in turns.pack(waiting).sent} for _ in range(3)]
    # 30 of 70 per call: all allocations within three calls, and no repetition within two calls.
    assert packed[0].isdisjoint(packed[1])
    assert set.union(*packed) == {source.allocation for source in waiting}
    waiting[5].has_priority = True
    assert "5.1" in {allocation for allocation, _ in turns.pack(waiting).sent}
