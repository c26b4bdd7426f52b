"""The parsing of posted operations from an untrusted process."""

import math
from typing import Any

import pytest
from pydantic import TypeAdapter

from control_plane.searchers.posted_operations import (
    HPARAMS_BYTES_MAX,
    HPARAMS_DEPTH_MAX,
    LENGTH_MAX,
    OPERATIONS_MAX,
    CloseRequest,
    CreateRequest,
    PostedOperations,
    PostRefused,
    ProgressRequest,
    ShutdownRequest,
    ValidateAfterRequest,
    parse_operations,
)

UUID = "0000000a-0000-4000-8000-00000000000b"


def refusal(*operations: object) -> str:
    with pytest.raises(PostRefused) as refused:
        parse_operations(operations)
    assert refused.value.code == "invalid"
    return str(refused.value)


def nest_lists(depth: int) -> Any:
    """Return a map with `depth` nested maps."""
    return {"x": nest_lists(depth - 1)} if depth else 1


def test_parses_every_operation() -> None:
    hparams = {"lr": 0.1, "layers": [1, 2], "opt": {"name": "sgd", "nesterov": True, "w": None}}
    assert parse_operations(
        [
            {"type": "create", "request_id": UUID.upper(), "hparams": hparams},
            {"type": "validate_after", "request_id": UUID, "length": LENGTH_MAX},
            {"type": "close", "request_id": UUID},
            {"type": "set_searcher_progress", "progress": 1},
            {"type": "shutdown", "failure": True},
        ]
    ) == (
        CreateRequest("create", UUID, hparams),
        ValidateAfterRequest("validate_after", UUID, LENGTH_MAX),
        CloseRequest("close", UUID),
        ProgressRequest("set_searcher_progress", 1.0),
        ShutdownRequest("shutdown", failure=True),
    )


def test_post_reads_back_from_journal() -> None:
    # Journals omit default values.
    posted = PostedOperations(
        1,
        0,
        (
            CreateRequest("create", UUID, {}),
            ValidateAfterRequest("validate_after", UUID, 1),
            CloseRequest("close", UUID),
            ShutdownRequest("shutdown"),
            ProgressRequest("set_searcher_progress", 0.0),
        ),
    )
    adapter = TypeAdapter(PostedOperations)
    stored = adapter.dump_json(posted, exclude_defaults=True)
    assert adapter.validate_json(stored) == posted


WRONG: list[tuple[object, str]] = [
    (3, "operations[0]: got 3; expected an object with a type"),
    (["create"], "operations[0]: got ['create']; expected an object with a type"),
    ({}, "operations[0].type: got None; expected one of create, validate_after, close, "),
    ({"type": "kill"}, "operations[0].type: got 'kill'; expected one of create, validate_after"),
    ({"type": ["close"]}, "operations[0].type: got ['close']; expected one of"),
    (
        {"type": "close", "request_id": UUID, "length": 3},
        "operations[0].length: is not known; close takes request_id",
    ),
    ({"type": "close"}, "operations[0].request_id: got None; expected a UUID like 3f2b8c1e-"),
    ({"type": "close", "request_id": 7}, "operations[0].request_id: got 7; expected a UUID"),
    ({"type": "close", "request_id": UUID[:-1]}, "operations[0].request_id: got '0000000a-"),
    ({"type": "close", "request_id": "{" + UUID + "}"}, "operations[0].request_id: got '{000"),
    ({"type": "close", "request_id": UUID + "\n"}, "operations[0].request_id: got '0000000a-"),
    ({"type": "close", "request_id": "x" * 900}, f"operations[0].request_id: got '{'x' * 59}...;"),
    ({"type": "shutdown", "cancel": 1}, "operations[0].cancel: got 1; expected true or false"),
]


@pytest.mark.parametrize(("operation", "text"), WRONG)
def test_error_names_place_value_and_expectation(operation: object, text: str) -> None:
    assert refusal(operation).startswith(text)


@pytest.mark.parametrize("length", [None, 0, -1, 1.0, "5", True, math.nan, LENGTH_MAX + 1, [5]])
def test_rejects_length_that_is_not_positive_integer(length: object) -> None:
    text = refusal({"type": "validate_after", "request_id": UUID, "length": length})
    expected = f"expected an integer from 1 to {LENGTH_MAX}"
    assert text == f"operations[0].length: got {length!r}; {expected}"


@pytest.mark.parametrize("share", [None, -0.1, 1.1, math.nan, math.inf, "0.5", True, 10**400])
def test_rejects_progress_outside_0_to_1(share: object) -> None:
    text = refusal({"type": "set_searcher_progress", "progress": share})
    assert text.startswith("operations[0].progress: got ")
    assert text.endswith("; expected a number from 0 to 1")


@pytest.mark.parametrize(
    ("hparams", "found"),
    [(None, "nothing"), (3, "an int"), ([], "a list"), ("lr", "a str"), (True, "a bool")],
)
def test_rejects_hyperparameters_that_are_not_a_map(hparams: object, found: str) -> None:
    text = refusal({"type": "create", "request_id": UUID, "hparams": hparams})
    expected = "expected an object of names to values"
    assert text == f"operations[0].hparams: got {found}; {expected}"


@pytest.mark.parametrize(
    "value", [math.nan, -math.inf, 1 << 63, -(1 << 63) - 1, "\ud800", 10**400, {"\udfff": 1}]
)
def test_rejects_hyperparameters_that_trials_cannot_use(value: object) -> None:
    hparams = {"lr": 0.1, "deep": {"list": [1, value]}}
    text = refusal({"type": "create", "request_id": UUID, "hparams": hparams})
    assert text.startswith("operations[0].hparams.deep.list[1]")
    assert "finite number of at most 64 bits" in text
    # An ASCII message can be written to any log or terminal.
    assert text.isascii()


def test_error_does_not_repeat_hyperparameters() -> None:
    hparams = {"key": "canary", "lr": math.nan}
    assert "canary" not in refusal({"type": "create", "request_id": UUID, "hparams": hparams})


def test_size_and_depth_of_hyperparameters_are_limited() -> None:
    fitting = "x" * (HPARAMS_BYTES_MAX - len('{"x":""}'))
    parse_operations([{"type": "create", "request_id": UUID, "hparams": {"x": fitting}}])
    parse_operations(
        [{"type": "create", "request_id": UUID, "hparams": nest_lists(HPARAMS_DEPTH_MAX - 1)}]
    )
    long = refusal({"type": "create", "request_id": UUID, "hparams": {"x": f"{fitting}x"}})
    assert long == "operations[0].hparams: has 8193 bytes, at most 8192 are allowed"
    deep = refusal({"type": "create", "request_id": UUID, "hparams": nest_lists(900)})
    assert deep.endswith(f": is nested more than {HPARAMS_DEPTH_MAX} deep")


def test_number_of_operations_is_limited() -> None:
    some = [{"type": "close", "request_id": UUID}] * OPERATIONS_MAX
    assert len(parse_operations(some)) == OPERATIONS_MAX
    assert refusal(*some, *some) == (
        "operations: 24 in one post, at most 12 are allowed; send the rest in further posts"
    )


def test_error_names_index_of_operation() -> None:
    fine = {"type": "close", "request_id": UUID}
    assert refusal(fine, fine, {"type": "close"}).startswith("operations[2].request_id: ")
