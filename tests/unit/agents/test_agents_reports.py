"""Conversion of report lines into messages, hostile lines included."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.messages.trial import (
    FIRST_STEP,
    AllocationExited,
    CheckpointDamageReported,
    CheckpointReported,
    ContainerStateReported,
    EarlyExitReported,
    LengthReached,
    ProgressReported,
    ValidationReported,
)
from control_plane.actors.messages.trial_logs import LogPolicyMatched
from control_plane.actors.records import CheckpointRef
from control_plane.agents.reports import Report, ReportContext, to_message
from control_plane.engine.actor_types import encode_message_for

UUID = "0123abcd-0000-4000-8000-00000000000a"
SHA256 = "a" * 64
HUGE = 10**400
# More digits than Python turns into text.
ENORMOUS = 10**5000

VALIDATION: dict[str, Any] = {
    "kind": "metrics",
    "group": "validation",
    "steps_completed": 60,
    "metrics": {"loss": 0.5, "accuracy": 0.9},
}
COMPLETED: dict[str, Any] = {"kind": "completed", "length": 100, "metric": 0.5}
CHECKPOINT: dict[str, Any] = {
    "kind": "checkpoint",
    "uuid": UUID,
    "steps_completed": 40,
    "path": f"1/4/2/{UUID}",
    "manifest_sha256": SHA256,
    "size_bytes": 8,
    "files": 1,
    "metadata": {"note": "x"},
}
EARLY_EXIT: dict[str, Any] = {"kind": "early_exit", "reason": "INVALID_HP"}
EXITED: dict[str, Any] = {
    "kind": "exited",
    "reason": "errored",
    "code": 1,
    "signal": None,
    "directive_revision": 3,
    "message": "out of luck",
}
DAMAGE: dict[str, Any] = {"kind": "checkpoint_damage", "uuid": UUID, "message": "no weights"}
OF_TRIAL = [VALIDATION, COMPLETED, CHECKPOINT, EARLY_EXIT, DAMAGE]


def read(line: dict[str, Any], writer: str = "0") -> object:
    """Return the message to trial 4 from a line of the second allocation."""
    return to_message(Report(4, 2, writer, 100, line), ReportContext("loss"))


def test_validation_has_searcher_metric() -> None:
    assert read(VALIDATION) == ValidationReported(2, 60, 0.5, values={"accuracy": 0.9})
    assert to_message(
        Report(4, 2, "0", 100, VALIDATION), ReportContext("accuracy")
    ) == ValidationReported(2, 60, 0.9, values={"loss": 0.5})


MATCH: dict[str, Any] = {
    "kind": "log_policy",
    "name": "OOM",
    "pattern": ".*memory.*",
    "actions": ["exclude_node", "cancel_retries"],
    "signal": "CUDA OOM",
    "line": "CUDA out of memory",
    "rank": 3,
}


def test_match_of_log_policy_counts_from_agent_only() -> None:
    context = ReportContext("loss", node_rank=1, nodes=2)
    assert to_message(Report(4, 2, "agent", 100, MATCH), context) == LogPolicyMatched(
        2,
        ".*memory.*",
        "CUDA out of memory",
        "OOM",
        ("cancel_retries", "exclude_node"),
        "CUDA OOM",
        rank=3,
        node_rank=1,
    )
    assert read(MATCH) is None


@pytest.mark.parametrize(
    ("field", "value", "name", "expected"),
    [
        ("actions", ["exclude_node", "delete", 3], "actions", ("exclude_node",)),
        ("actions", {"exclude_node": 1}, "actions", ()),
        ("actions", None, "actions", ()),
        ("line", "x" * 10_000, "line", "x" * 200),
        ("line", None, "line", ""),
        ("signal", "s" * 10_000, "signal", "s" * 100),
        ("name", 7, "name", ""),
        ("webhook", "w", "webhook", "w"),
        ("rank", -1, "rank", 0),
        ("rank", HUGE, "rank", 0),
        ("pattern", "p" * 10_000, "pattern", "p" * 1_000),
    ],
)
def test_hostile_match_of_log_policy_is_bounded(
    field: str, value: object, name: str, expected: object
) -> None:
    assert getattr(read({**MATCH, field: value}, "agent"), name) == expected


def test_match_without_pattern_is_ignored() -> None:
    assert read({"kind": "log_policy", "line": "x"}, "agent") is None


def test_damage_counts_from_chief_only_and_has_fallbacks() -> None:
    context = ReportContext("loss", fallbacks=("a", "b"))
    message = to_message(Report(4, 2, "0", 100, DAMAGE), context)
    assert message == CheckpointDamageReported(2, UUID, "no weights", ("a", "b"))
    for writer in ("1", "7", "00", "agent", ""):
        assert to_message(Report(4, 2, writer, 100, DAMAGE), context) is None


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"message": "x" * 9000}, "x" * 500),
        ({"message": None}, "no cause was given"),
        ({"message": ""}, "no cause was given"),
        ({"message": ENORMOUS}, "no cause was given"),
    ],
)
def test_cause_of_damage_is_short_text(change: dict[str, Any], cause: str) -> None:
    assert read(DAMAGE | change) == CheckpointDamageReported(2, UUID, cause)


@pytest.mark.parametrize("uuid", [None, "", 7, [UUID], UUID.upper(), f"{UUID}/..", f"{UUID}\n"])
def test_damage_without_uuid_is_ignored(uuid: object) -> None:
    assert read(DAMAGE | {"uuid": uuid}) is None


@pytest.mark.parametrize("group", ["training", "Validation", None, ["validation"]])
def test_metrics_of_other_groups_are_ignored(group: object) -> None:
    assert read(VALIDATION | {"group": group}) is None


def test_validation_without_searcher_metric_is_ignored() -> None:
    assert read(VALIDATION | {"metrics": {"accuracy": 0.9}}) is None


def test_completed_length_becomes_message() -> None:
    assert read(COMPLETED) == LengthReached(2, 100, 0.5)
    assert read(COMPLETED | {"metric": 1}) == LengthReached(2, 100, 1.0)


def test_value_becomes_message_with_the_metric() -> None:
    completed = COMPLETED | {"metric": None}
    both = {"loss": 0.25, "per_class": [1, "NaN"]}
    text = '{"loss":0.25,"per_class":[1,"NaN"]}'
    assert read(completed | {"value": both}) == LengthReached(2, 100, 0.25, value=text)
    for value in ({"accuracy": 1}, {"loss": "NaN"}, {"loss": "low"}, [0.25], "loss"):
        message = read(completed | {"value": value})
        assert isinstance(message, LengthReached)
        assert (message.metric, json.loads(message.value)) == (None, value)
    # 8190 letters and two quotes are 8 KiB.
    assert read(completed | {"value": "x" * 8190}) is not None
    assert read(completed | {"value": "x" * 8191}) is None


def test_length_without_searcher_metric_has_reason() -> None:
    lacking = COMPLETED | {"metric": None}
    assert read(lacking | {"message": "no loss"}) == LengthReached(2, 100, None, "no loss")
    assert read(lacking | {"message": 7}) == LengthReached(
        2, 100, None, "the searcher's metric is missing"
    )


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_named_infinity_or_nan_is_no_metric(name: str) -> None:
    assert read(COMPLETED | {"metric": name}) == LengthReached(2, 100, None)
    assert read(VALIDATION | {"metrics": {"loss": name}}) == ValidationReported(2, 60, None)


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_integer_beyond_float_is_no_metric(number: int) -> None:
    assert read(COMPLETED | {"metric": number}) == LengthReached(2, 100, None)
    assert read(VALIDATION | {"metrics": {"loss": number}}) == ValidationReported(2, 60, None)
    kept = read(CHECKPOINT | {"metric": number})
    assert isinstance(kept, CheckpointReported)
    assert kept.metric is None


def test_integer_within_float_is_a_metric() -> None:
    assert read(COMPLETED | {"metric": 10**39}) == LengthReached(2, 100, 1e39)


@pytest.mark.parametrize(("value", "share"), [(0, 0.0), (0.5, 0.5), (1, 1.0)])
def test_progress_counts_only_without_lengths(value: float, share: float) -> None:
    line = {"kind": "progress", "value": value}
    report = Report(4, 2, "0", 100, line)
    assert to_message(report, ReportContext("loss", uses_progress=True)) == ProgressReported(
        2, share
    )
    assert to_message(report, ReportContext("loss")) is None


@pytest.mark.parametrize("value", [-0.1, 1.1, "NaN", None, True, "0.5", [1], math.nan])
def test_invalid_progress_is_ignored(value: object) -> None:
    report = Report(4, 2, "0", 100, {"kind": "progress", "value": value})
    assert to_message(report, ReportContext("loss", uses_progress=True)) is None


def test_checkpoint_becomes_message() -> None:
    reference = CheckpointRef(UUID, 4, 40, f"1/4/2/{UUID}", SHA256)
    passed_on = CheckpointReported(2, reference, 8, 1, {"note": "x"})
    assert read(CHECKPOINT) == passed_on
    assert read(CHECKPOINT | {"metric": 0.5}) == replace(passed_on, metric=0.5)
    # NaN is a metric without a value, so the checkpoint counts. Other texts are invalid.
    assert read(CHECKPOINT | {"metric": "NaN"}) == passed_on
    assert read(CHECKPOINT | {"metric": "half"}) is None


@pytest.mark.parametrize("reason", ["INVALID_HP", "USER_REQUESTED_STOP"])
def test_early_exit_becomes_message(reason: str) -> None:
    assert read(EARLY_EXIT | {"reason": reason}) == EarlyExitReported(2, reason)


@pytest.mark.parametrize("state", ["PULLING", "STARTING", "RUNNING"])
def test_container_state_becomes_message(state: str) -> None:
    line = {"kind": "container", "state": state}
    assert read(line, "agent") == ContainerStateReported(2, state)


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ({"code": 5, "image": 0, "machine": 9, "agent": 8, "packages": 7}, None),
        ({"restore": 1, "first_step": 2, "other": 3}, {"restore": 1, "first_step": 2}),
        ({"code": -1, "image": 1.5, "packages": True, "agent": "5", "machine": HUGE}, {}),
        ([["code", 5]], {}),
        (None, {}),
    ],
)
def test_known_whole_durations_count(durations: Any, expected: dict[str, int] | None) -> None:
    line = {"kind": "container", "state": "RUNNING", "durations_ms": durations}
    known = durations if expected is None else expected
    assert read(line, "agent") == ContainerStateReported(2, "RUNNING", durations=known)


def test_first_step_counts_from_the_chief_only() -> None:
    line = {"kind": "first_step", "steps_completed": 5, "durations_ms": {"restore": 5}}
    assert read(line, "0") == ContainerStateReported(2, FIRST_STEP, durations={"restore": 5})
    assert read(line, "1") is None
    assert read(line, "agent") is None


@pytest.mark.parametrize("age", [None, -1, True, HUGE, "5"])
def test_invalid_age_of_a_notice_is_unknown(age: object) -> None:
    message = read(EXITED | {"notice": "spot", "notice_age_ms": age}, "agent")
    assert isinstance(message, AllocationExited)
    assert message.notice_age_ms == 0


def test_exit_becomes_message() -> None:
    assert read(EXITED, "agent") == AllocationExited(2, "errored", 1, 3, "out of luck")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"code": "x"}, AllocationExited(2, "errored", None, 3, "out of luck")),
        ({"code": True}, AllocationExited(2, "errored", None, 3, "out of luck")),
        ({"code": HUGE}, AllocationExited(2, "errored", None, 3, "out of luck")),
        ({"directive_revision": -1}, AllocationExited(2, "errored", 1, 0, "out of luck")),
        ({"directive_revision": ENORMOUS}, AllocationExited(2, "errored", 1, 0, "out of luck")),
        ({"directive_revision": None}, AllocationExited(2, "errored", 1, 0, "out of luck")),
        ({"message": ENORMOUS}, AllocationExited(2, "errored", 1, 3, "")),
        ({"message": "x" * 9000}, AllocationExited(2, "errored", 1, 3, "x" * 4000)),
        ({"reason": None}, AllocationExited(2, "errored", 1, 3, "out of luck")),
        ({"reason": ENORMOUS}, AllocationExited(2, "errored", 1, 3, "out of luck")),
        ({"reason": "y" * 900}, AllocationExited(2, "y" * 64, 1, 3, "out of luck")),
    ],
)
def test_malformed_exit_becomes_message(change: dict[str, Any], expected: AllocationExited) -> None:
    # Without a message for the exit, the trial would keep the slots forever.
    assert read(EXITED | change, "agent") == expected


@pytest.mark.parametrize("line", OF_TRIAL, ids=lambda line: line["kind"])
def test_trial_lines_of_agent_are_ignored(line: dict[str, Any]) -> None:
    assert read(line, "agent") is None


@pytest.mark.parametrize("line", [EXITED, {"kind": "container", "state": "RUNNING"}])
@pytest.mark.parametrize("writer", ["0", "7", "Agent", ""])
def test_agent_lines_of_trial_are_ignored(line: dict[str, Any], writer: str) -> None:
    assert read(line, writer) is None


@pytest.mark.parametrize(
    "kind", ["environment", "checkpoint_intent", "progress", "exit", "x", "", None, 7, [], {}, True]
)
def test_other_kinds_of_lines_are_ignored(kind: object) -> None:
    assert read(CHECKPOINT | {"kind": kind}) is None
    assert read({}) is None


BAD_COUNTS: list[object] = [-1, 1.0, "1", None, True, [1], 1 << 53, HUGE, ENORMOUS, math.nan]
BAD_METRICS: list[object] = [
    "0.5",
    "nan",
    "",
    None,
    True,
    [0.5],
    {},
    math.nan,
    math.inf,
]
BAD_PATHS: list[object] = [
    "",
    "/",
    f"/1/4/2/{UUID}",
    f"1/4/2/{UUID}/",
    f"1//4/2/{UUID}",
    f"../4/2/{UUID}",
    f"1/4/2/../../5/2/{UUID}",
    f"1/./4/2/{UUID}",
    f"1/4/2/{UUID}/..",
    f"1/4/2/{UUID}\n",
    f"1/4/2/{UUID}\x00",
    f"1\\4\\2\\{UUID}",
    f"1/4/2/{UUID}?",
    f"s3://x/4/2/{UUID}",
    # Paths of other trials, allocations and checkpoints.
    f"1/5/2/{UUID}",
    f"1/5/4/{UUID}",
    f"4/5/2/{UUID}",
    f"1/5/4/4/2/{UUID}",
    f"1/4/1/{UUID}",
    f"1/04/2/{UUID}",
    "1/4/2/0123abcd-0000-4000-8000-00000000000b",
    f"1/4/2/{UUID}/extra",
    f"x/1/4/2/{UUID}",
    f"a/4/2/{UUID}",
    ["1", "4"],
    None,
    4,
]
BAD_REASONS: list[object] = [
    "",
    "invalid_hp",
    None,
    7,
    [],
    {},
    ENORMOUS,
    "ERRORED",
    "USER_CANCELED",
]
BAD_UUIDS: list[object] = [
    "",
    "x",
    UUID.upper(),
    UUID + "\n",
    UUID.replace("-", ""),
    "../" + UUID,
    None,
    7,
]
HOSTILE: list[dict[str, Any]] = [
    *(VALIDATION | {"steps_completed": bad} for bad in BAD_COUNTS),
    *(VALIDATION | {"metrics": {"loss": bad}} for bad in BAD_METRICS),
    *(VALIDATION | {"metrics": bad} for bad in (None, 7, "loss", ["loss"], [["loss", 1]])),
    *(COMPLETED | {"length": bad} for bad in BAD_COUNTS),
    *(COMPLETED | {"metric": bad} for bad in BAD_METRICS),
    *(CHECKPOINT | {"steps_completed": bad} for bad in BAD_COUNTS),
    *(CHECKPOINT | {"size_bytes": bad} for bad in BAD_COUNTS),
    *(CHECKPOINT | {"files": bad} for bad in BAD_COUNTS),
    *(CHECKPOINT | {"path": bad} for bad in BAD_PATHS),
    *(CHECKPOINT | {"uuid": bad} for bad in BAD_UUIDS),
    *(CHECKPOINT | {"manifest_sha256": bad} for bad in ("", "a" * 63, "A" * 64, "g" * 64, None)),
    *(EARLY_EXIT | {"reason": bad} for bad in BAD_REASONS),
    *({key: value for key, value in COMPLETED.items() if key != gone} for gone in COMPLETED),
    *({"kind": bad} for bad in (ENORMOUS, HUGE, None, ["metrics"])),
    *({"kind": line["kind"]} for line in OF_TRIAL),
]


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_line_is_ignored(line: dict[str, Any]) -> None:
    assert read(line) is None


@pytest.mark.parametrize("metadata", ["x", 7, ["x"], [["a", 1]], True, {"a": "x" * 20_000}, None])
def test_checkpoint_counts_without_unstorable_metadata(
    metadata: object,
) -> None:
    # The metadata are also in the checkpoint's files.
    message = read(CHECKPOINT | {"metadata": metadata})
    assert isinstance(message, CheckpointReported)
    assert message.metadata == {}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([HUGE, "NaN", "..", UUID, "loss", "validation"])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
LINES = st.sampled_from([*OF_TRIAL, EXITED, {"kind": "container", "state": "RUNNING"}])


@settings(deadline=None, derandomize=True)
@given(LINES, st.data(), st.sampled_from(["0", "agent"]))
def test_any_line_gives_a_storable_message_or_no_message(
    line: dict[str, Any], data: st.DataObject, writer: str
) -> None:
    field = data.draw(st.sampled_from(sorted(line)))
    message = read(line | {field: data.draw(JSON)}, writer)
    if message is not None:
        encode_message_for("trial#4", message)


def timed_message(metrics: dict[str, Any], time_metric: str = "hours") -> object:
    """Return the message to trial 4 from a validation in a search with a time metric."""
    line = VALIDATION | {"metrics": metrics}
    return to_message(Report(4, 2, "0", 100, line), ReportContext("loss", time_metric))


def test_timed_search_gets_both_metrics() -> None:
    timed = ValidationReported(2, 60, 0.5, 2.0, values={"hours": 2.0})
    assert timed_message({"loss": 0.5, "hours": 2}) == timed
    assert timed_message({"loss": "NaN", "hours": 2.5}) == ValidationReported(2, 60, None, 2.5)


def test_batches_need_not_be_reported_as_time_metric() -> None:
    assert timed_message({"loss": 0.5}, "batches") == ValidationReported(2, 60, 0.5, 60.0)
    assert timed_message({"loss": 0.5, "batches": 7}, "batches") == ValidationReported(
        2, 60, 0.5, 7.0, values={"batches": 7.0}
    )


@pytest.mark.parametrize(
    ("metrics", "lack"),
    [
        ({"hours": 2}, "lacks searcher.metric 'loss'; it has: hours"),
        ({"loss": 0.5}, "lacks searcher.time_metric 'hours'; it has: loss"),
        ({}, "lacks searcher.metric 'loss'; it has: none"),
        ({"loss": [1], "hours": 2}, "reports [1] as searcher.metric 'loss': it must be one number"),
        (
            {"loss": 0.5, "hours": "NaN"},
            "reports 'NaN' as searcher.time_metric 'hours': it must be one number",
        ),
        (
            {"loss": 0.5, "hours": "soon"},
            "reports 'soon' as searcher.time_metric 'hours': it must be one number",
        ),
    ],
)
def test_timed_search_gets_reason_for_missing_metric(metrics: dict[str, Any], lack: str) -> None:
    message = timed_message(metrics)
    assert isinstance(message, ValidationReported)
    assert message.missing_metric_reason == f"the validation at batch 60 {lack}"


NODE = ReportContext("loss", node_rank=1, nodes=2)


def test_messages_of_gang_nodes_have_ranks() -> None:
    def read(line: dict[str, Any], writer: str) -> object:
        return to_message(Report(4, 2, writer, 100, line), NODE)

    running = {"kind": "container", "state": "RUNNING"}
    assert read(running, "agent") == ContainerStateReported(2, "RUNNING", 1, 2)
    exited = read(EXITED | {"notice": "spot interruption"}, "agent")
    assert exited == AllocationExited(2, "errored", 1, 3, "out of luck", 1, 2, "spot interruption")
    by_rank = ValidationReported(2, 60, 0.5, nodes=2, values={"accuracy": 0.9})
    assert read(VALIDATION, "1") == by_rank
