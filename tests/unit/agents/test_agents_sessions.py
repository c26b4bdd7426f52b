"""An agent's reports count once, in order, and only for assigned allocations."""

import json
from random import Random
from typing import Any

import pytest

from control_plane.actors.messages.trial import (
    AllocationExited,
    ContainerStateReported,
    TrialMessage,
    ValidationReported,
)
from control_plane.actors.step import CommandRefused
from control_plane.agents.metric_rows import Stream, to_segment
from control_plane.agents.reports import Report, ReportContext
from control_plane.agents.sessions import (
    MERGE_FROM_ROWS,
    MERGE_FROM_ROWS_AT_EXIT,
    WRITERS_MAX,
    LogChunk,
    Session,
    accept_logs,
    accept_reports,
    decode_session,
    forget_allocations,
    session_write,
)
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.mailbox import RECOVERY_DELAY_MS, TICKS_PER_MS, read_mail
from control_plane.metrics.columns import Columns
from control_plane.metrics.segment import decode_segment
from control_plane.state.table import (
    ROW_BYTES_MAX,
    Expect,
    Key,
    Put,
    Row,
    check_limits,
)

NOW_MS = 1_000
CONTEXTS = {f"{trial}.{epoch}": ReportContext("loss") for trial in (4, 5) for epoch in (1, 2)}


def line(offset: int, steps: int = 10, *, trial: int = 4, epoch: int = 1) -> Report:
    """Return a validation line."""
    fields = {"kind": "metrics", "group": "validation", "steps_completed": steps}
    return Report(trial, epoch, "0", offset, fields | {"metrics": {"loss": 0.5}})


def agent_report(offset: int, fields: dict[str, Any], *, trial: int = 4) -> Report:
    return Report(trial, 1, "agent", offset, fields)


def accept(
    *reports: Report, session: Session | None = None
) -> tuple[Session, list[Put], tuple[str, ...]]:
    accepted = accept_reports("a", session or Session(), reports, CONTEXTS, NOW_MS)
    return (
        accepted.session,
        [put for put in accepted.writes if isinstance(put, Put)],
        accepted.receivers,
    )


def mail_in(writes: list[Put]) -> list[tuple[str, TrialMessage]]:
    """Return the receiver and message of all mail."""
    messages = []
    for put in writes:
        if put.key.sort.startswith("M#"):
            mail = read_mail(Row(put.key, put.revision, put.body, put.due_ms))
            kind = actor_type_at(put.key.partition)
            messages += [
                (put.key.partition, kind.decode_message(name, fields))
                for name, fields in mail.messages
            ]
    return messages


def metrics_in(writes: list[Put]) -> dict[str, list[tuple[int, Any]]]:
    """Return the steps and metrics of each row of metrics."""
    return {
        f"{put.key.partition}/{put.key.sort}": [
            (report.steps, dict(report.metrics)) for report in _columns(put).reports()
        ]
        for put in writes
        if put.key.sort.startswith("R#")
    }


def _columns(put: Put) -> Columns:
    return decode_segment(put.body, int(put.key.sort.rpartition("#")[2]))


def lines_in(writes: list[Put]) -> dict[str, Any]:
    return {
        f"{put.key.partition}/{put.key.sort}": json.loads(put.body)
        for put in writes
        if not put.key.sort.startswith(("M#", "R#"))
    }


def test_report_is_acknowledged_stored_and_mailed() -> None:
    session, writes, mailed = accept(line(10))
    assert session.acked == {"4.1": {"0": 10}}
    assert mail_in(writes) == [("trial#4", ValidationReported(1, 10, 0.5))]
    row = "trial#4/R#validation#00000001#0#00000000000010"
    assert metrics_in(writes) == {row: [(10, {"loss": 0.5})]}
    assert mailed == ("trial#4",)


@pytest.mark.parametrize("offset", [1, 9, 10])
def test_acknowledged_line_is_skipped(offset: int) -> None:
    before, _, _ = accept(line(10))
    after, writes, mailed = accept(line(offset), session=before)
    assert (after, writes, mailed) == (before, [], ())


def test_repeated_batch_counts_for_new_lines_only() -> None:
    before, _, _ = accept(line(10, 1), line(20, 2))
    after, writes, _ = accept(line(10, 1), line(20, 2), line(30, 3), session=before)
    assert [message for _, message in mail_in(writes)] == [ValidationReported(1, 3, 0.5)]
    assert after.acked == {"4.1": {"0": 30}}


def test_line_twice_in_one_batch_counts_once() -> None:
    _, writes, _ = accept(line(10), line(10))
    assert len(mail_in(writes)) == 1


def test_line_after_a_later_line_is_discarded() -> None:
    # A writer's lines arrive in order, so lines before the acknowledged offset were accepted.
    session, writes, _ = accept(line(20, 2), line(10, 1))
    assert [message for _, message in mail_in(writes)] == [ValidationReported(1, 2, 0.5)]
    assert session.acked == {"4.1": {"0": 20}}


def test_torn_batch_continues() -> None:
    whole = [line(10, 1), line(20, 2), line(30, 3)]
    first, writes, _ = accept(*whole[:1])
    last, more, _ = accept(*whole, session=first)
    assert [message for _, message in mail_in(writes + more)] == [
        ValidationReported(1, steps, 0.5) for steps in (1, 2, 3)
    ]
    assert last.acked == {"4.1": {"0": 30}}


def test_writers_and_allocations_have_separate_offsets() -> None:
    running = {"kind": "container", "state": "RUNNING"}
    session, writes, mailed = accept(
        line(10), agent_report(5, running), line(7, trial=5), line(3, epoch=2)
    )
    assert session.acked == {"4.1": {"0": 10, "agent": 5}, "5.1": {"0": 7}, "4.2": {"0": 3}}
    assert len(mail_in(writes)) == 4
    assert mailed == ("trial#4", "trial#5")


def test_reports_about_other_trials_are_acknowledged_and_discarded() -> None:
    session, writes, mailed = accept(line(10, trial=9))
    assert session.acked == {"9.1": {"0": 10}}
    assert (writes, mailed) == ([], ())


def test_messages_of_an_allocation_share_a_row_in_order() -> None:
    exited = {"kind": "exited", "reason": "completed"}
    _, writes, _ = accept(
        agent_report(5, {"kind": "container", "state": "RUNNING"}),
        line(10),
        agent_report(9, exited),
    )
    assert [put.key.sort[:2] for put in writes].count("M#") == 1
    assert [type(message) for _, message in mail_in(writes)] == [
        ContainerStateReported,
        ValidationReported,
        AllocationExited,
    ]


def test_mail_names_previous_row_and_sorts_later() -> None:
    session, first, _ = accept(line(10))
    session, second, _ = accept(line(20), session=session)
    one, two = (
        read_mail(Row(put.key, 1, put.body))
        for put in (*first, *second)
        if put.key.sort.startswith("M#")
    )
    assert (one.previous, two.previous) == ("", one.key.sort)
    assert two.key.sort > one.key.sort
    assert session.clock == NOW_MS * TICKS_PER_MS + 1
    assert one.sender == "agent#a"
    due = [put.due_ms for put in first if put.key.sort.startswith("M#")]
    assert due == [NOW_MS + RECOVERY_DELAY_MS]


def test_exit_is_remembered_until_allocation_is_forgotten() -> None:
    exited = {"kind": "exited", "reason": "completed"}
    session, _, _ = accept(agent_report(9, exited), agent_report(9, exited, trial=9), line(10))
    assert session.exited == ("4.1", "9.1")
    assert forget_allocations(session, ["9.1"]).exited == ("9.1",)


def test_exit_line_of_trial_is_no_exit() -> None:
    session, writes, _ = accept(Report(4, 1, "0", 10, {"kind": "exited", "reason": "completed"}))
    assert session.exited == ()
    assert writes == []


def test_unknown_allocations_are_removed_from_all_fields() -> None:
    session, _, _ = accept(line(10), line(10, trial=5))
    session, _ = accept_logs(session, [LogChunk("4.1", 0, b"abc"), LogChunk("5.1", 0, b"d")])
    left = forget_allocations(session, ["5.1", "6.1"])
    assert set(left.acked) == set(left.logs) == set(left.sent) == {"5.1"}
    assert left.clock == session.clock


def training(offset: int, steps: int, writer: str = "0", **values: Any) -> Report:
    fields = {"kind": "metrics", "group": "training", "steps_completed": steps, "time_ms": 9}
    return Report(4, 1, writer, offset, fields | {"metrics": values})


def test_metrics_of_a_stream_share_a_row_in_order() -> None:
    _, writes, _ = accept(
        training(10, 5, l=1), line(20), training(30, 6, l=2), training(7, 6, "1", l=3)
    )
    assert metrics_in(writes) == {
        "trial#4/R#training#00000001#0#00000000000010": [(5, {"l": 1}), (6, {"l": 2})],
        "trial#4/R#training#00000001#1#00000000000007": [(6, {"l": 3})],
        "trial#4/R#validation#00000001#0#00000000000020": [(10, {"loss": 0.5})],
    }


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("gpu 0", "gpu%200"),
        ("a#b", "a%23b"),
        ("a/b", "a%2Fb"),
        ("~", "%7E"),
        ("%23", "%2523"),
        ("grün", "gr%C3%BCn"),
        ("\n", "%0A"),
        ("x" * 64, "x" * 64),
        ("€" * 64, "%E2%82%AC" * 64),
    ],
)
def test_group_names_give_distinct_keys(group: str, name: str) -> None:
    fields = {"kind": "metrics", "group": group, "steps_completed": 1, "metrics": {"l": 1}}
    _, writes, _ = accept(Report(4, 1, "0", 10, fields))
    check_limits(writes)
    [put] = writes
    assert put.key.sort == f"R#{name}#00000001#0#00000000000010"
    assert to_segment(Row(put.key, 1, put.body)).stream == Stream(group, 1, "0")


@pytest.mark.parametrize(
    "group", ["a.b", "", "x" * 65, "\ud800", None, 7, 10**5000, ["x"]], ids=type
)
def test_invalid_group_is_discarded(group: object) -> None:
    fields = {"kind": "metrics", "group": group, "steps_completed": 1, "metrics": {}}
    session, writes, _ = accept(Report(4, 1, "0", 10, fields))
    assert writes == []
    assert session.acked == {"4.1": {"0": 10}}


def test_many_rows_of_metrics_are_merged() -> None:
    session = Session()
    for n in range(1, MERGE_FROM_ROWS):
        found = accept_reports("a", session, [training(n, n)], CONTEXTS, NOW_MS)
        assert (found.session.rows, found.allocations_to_merge) == ({"4.1": n}, ())
        session = found.session
    found = accept_reports("a", session, [training(MERGE_FROM_ROWS, 1)], CONTEXTS, NOW_MS)
    assert (found.session.rows, found.allocations_to_merge) == ({}, ("4.1",))


@pytest.mark.parametrize(
    ("rows", "crowded"), [(MERGE_FROM_ROWS_AT_EXIT - 1, ()), (MERGE_FROM_ROWS_AT_EXIT, ("4.1",))]
)
def test_exit_merges_fewer_rows(rows: int, crowded: tuple[str, ...]) -> None:
    exited = agent_report(9, {"kind": "exited", "reason": "completed"})
    found = accept_reports("a", Session(rows={"4.1": rows}), [exited], CONTEXTS, NOW_MS)
    assert found.allocations_to_merge == crowded


@pytest.mark.parametrize("kind", [10**5000, None, ["metrics"], {}], ids=type)
def test_line_without_kind_is_acknowledged_and_discarded(kind: object) -> None:
    session, writes, _ = accept(Report(4, 1, "0", 10, {"kind": kind}))
    assert writes == []
    assert session.acked == {"4.1": {"0": 10}}


def test_last_environment_of_a_writer_is_stored() -> None:
    environments = [{"kind": "environment", "hostname": name} for name in "abc"]
    reports = [Report(4, 1, "0", 10, environments[0]), Report(4, 1, "0", 20, environments[1])]
    _, writes, mailed = accept(*reports, Report(4, 1, "1", 10, environments[2]))
    assert lines_in(writes) == {
        "trial#4/E#00000001#0": environments[1],
        "trial#4/E#00000001#1": environments[2],
    }
    assert mailed == ()


def test_last_metadata_of_a_trial_are_stored() -> None:
    first, second = ({"kind": "trial_metadata", "metadata": {"note": n}} for n in "ab")
    _, writes, mailed = accept(Report(4, 1, "0", 10, first), Report(4, 2, "0", 10, second))
    assert lines_in(writes) == {"trial#4/U#": {"note": "b"}}
    assert mailed == ()
    # Trial 9 does not run on the agent.
    assert accept(Report(9, 1, "0", 10, first))[1] == []


@pytest.mark.parametrize("metadata", [None, [], "x", 7, {"note": "x" * 20_000}])
def test_invalid_metadata_are_not_stored(metadata: object) -> None:
    line = {"kind": "trial_metadata", "metadata": metadata}
    assert accept(Report(4, 1, "0", 10, line))[1] == []


def test_announced_checkpoint_is_stored_by_uuid() -> None:
    uuid = "0000000a-0000-4000-8000-000000000001"
    line = {"kind": "checkpoint_intent", "uuid": uuid, "path": "p", "steps_completed": 3}
    _, writes, mailed = accept(Report(4, 1, "0", 10, line))
    assert lines_in(writes) == {"trial#4/I#00000001#0#00000000000010": {"uuid": uuid}}
    assert mailed == ()


@pytest.mark.parametrize("uuid", ["x", "../..", "", 7, None])
def test_invalid_announcement_is_not_stored(uuid: object) -> None:
    line = {"kind": "checkpoint_intent", "uuid": uuid}
    assert accept(Report(4, 1, "0", 10, line))[1] == []


def test_number_of_writers_is_limited() -> None:
    reports = [Report(4, 1, str(n), 10, {}) for n in range(WRITERS_MAX)]
    session, _, _ = accept(*reports, reports[0])
    assert len(session.acked["4.1"]) == WRITERS_MAX
    assert len(accept(*reports, agent_report(10, {}))[0].acked["4.1"]) == WRITERS_MAX + 1
    with pytest.raises(CommandRefused, match="more than 256 writers"):
        accept(*reports, Report(4, 1, "256", 10, {}))


def test_megabyte_of_metrics_fits_into_rows() -> None:
    # 8 lines of 120,000 random hexadecimal digits have 4 bits each. Compression leaves at least
    # 480,000 bytes of 960,000. A row has at most 409,600 bytes.
    random = Random(7)
    texts = [random.randbytes(60_000).hex() for _ in range(8)]
    reports = [training(10 * n, n, note=text) for n, text in enumerate(texts, 1)]
    _, writes, _ = accept(*reports)
    check_limits(writes)
    assert len(writes) > 1
    assert all(len(put.body) < ROW_BYTES_MAX for put in writes)
    kept = [entry for _, row in sorted(metrics_in(writes).items()) for entry in row]
    assert kept == [(n, {"note": text}) for n, text in enumerate(texts, 1)]


def test_session_is_stored_and_read_back() -> None:
    session, _, _ = accept(line(10), agent_report(9, {"kind": "exited", "reason": "lost"}))
    first = session_write("a", session, None)
    assert (first.key, first.revision, first.expect) == (Key("sessions", "a"), 1, Expect.ABSENT)
    row = Row(first.key, 7, first.body)
    assert decode_session(row) == session
    assert (session_write("a", session, row).revision, session_write("a", session, row).expect) == (
        8,
        7,
    )
    assert decode_session(None) == Session()


@pytest.mark.parametrize(
    ("taken_before", "offset", "text", "fresh"),
    [
        (0, 0, b"abc", (0, b"abc")),
        (3, 3, b"de", (3, b"de")),
        (3, 0, b"abcde", (3, b"de")),
        (3, 2, b"cde", (3, b"de")),
        (3, 0, b"abc", None),
        (3, 0, b"a", None),
        # The bytes in the gap are still missing.
        (3, 4, b"e", None),
        (0, 1, b"b", None),
        (3, 3, b"", None),
        # Bytes, not characters: 4 bytes were taken of 2 + 2 + 2.
        (4, 0, "äöü".encode(), (4, "ü".encode())),
    ],
)
def test_accepts_new_part_of_log_chunk(
    taken_before: int, offset: int, text: bytes, fresh: tuple[int, bytes] | None
) -> None:
    session = Session(logs={"4.1": taken_before})
    after, found = accept_logs(session, [LogChunk("4.1", offset, text)])
    assert found == ([] if fresh is None else [LogChunk("4.1", *fresh)])
    assert after.logs == {"4.1": taken_before if fresh is None else offset + len(text)}


def test_chunks_of_one_call_are_consecutive() -> None:
    chunks = [LogChunk("4.1", 0, b"abc"), LogChunk("4.1", 2, b"cd"), LogChunk("5.1", 0, b"x")]
    session, fresh = accept_logs(Session(), chunks)
    assert fresh == [
        LogChunk("4.1", 0, b"abc"),
        LogChunk("4.1", 3, b"d"),
        LogChunk("5.1", 0, b"x"),
    ]
    assert session.logs == {"4.1": 4, "5.1": 1}


def test_metrics_of_other_ranks_are_separate_and_send_no_message() -> None:
    fields = {"kind": "rank_metrics", "group": "validation", "steps_completed": 10}
    lines = [Report(4, 1, writer, 10, fields | {"metrics": {"loss": 0.5}}) for writer in "3a"]
    session, writes, receivers = accept(*lines)
    # Only a rank can be the writer of rank metrics. Lines of writer `a` are discarded.
    assert session.acked == {"4.1": {"3": 10, "a": 10}}
    [put] = writes
    assert receivers == ()
    assert put.key.sort == "W#00003#validation#00000001#3#00000000000010"
    assert to_segment(Row(put.key, 1, put.body)).stream == Stream("validation", 1, "3", 3)
