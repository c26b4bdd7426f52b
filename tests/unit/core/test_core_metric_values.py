"""Metric values that need a conversion for JSON, TensorBoard's files or the searcher."""

import json
import math
import struct
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detcloud import DetcloudError, core
from detcloud.core.searcher import SearcherOperation
from detcloud.core.tensorboard import EventWriter, scalar_event
from detcloud.shared.trial_directory import Directives
from tests.unit.core.test_core_tensorboard import events, scalars
from tests.unit.core.trial_files import enter, make_trial, reports

HUGE = [10**39, 10**300, 10**400, -(10**39), -(10**400), 10**4299]


@pytest.mark.parametrize("number", [1e39, *HUGE], ids=["float", *map(str, range(len(HUGE)))])
def test_event_writes_a_number_beyond_single_precision_as_infinity(number: float) -> None:
    (value,) = struct.unpack("<f", scalar_event(0.0, 1, {"v": number})[-4:])
    assert value == (math.inf if number > 0 else -math.inf)


def test_event_writer_continues_after_a_huge_integer(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "x")
    for step, number in enumerate(HUGE):
        writer.add_scalars("training", step, {"v": number})
    writer.add_scalars("training", 99, {"v": 0.5})
    writer.close()
    (path,) = tmp_path.iterdir()
    written = [scalars(event) for event in events(path)[1:]]
    assert len(written) == len(HUGE) + 1
    assert written[-1] == {"training/v": 0.5}


ACCEPTED: list[tuple[Any, object]] = [
    *((number, number) for number in HUGE),
    (2**53 + 1, 2**53 + 1),
    (2**64, 2**64),
    (Decimal("0.25"), 0.25),
    (Decimal("1e400"), "Infinity"),
    (Decimal("-Infinity"), "-Infinity"),
    (Decimal("sNaN"), "NaN"),
    (Fraction(1, 4), 0.25),
    (Fraction(10**400), "Infinity"),
    (Fraction(-(10**400)), "-Infinity"),
    (float("nan"), "NaN"),
    ([1.0, float("inf"), [float("nan")]], [1.0, "Infinity", ["NaN"]]),
    ({"a": (Decimal("0.5"), None)}, {"a": [0.5, None]}),
    (True, True),
    ("a\ud800b", "a?b"),
    (np.array([1, 2], "u8"), [1, 2]),
    (np.array(0.5, "g"), 0.5),
    (np.array([0.5, np.nan], "g"), [0.5, "NaN"]),
    (np.array([10**39, None], "O"), [10**39, None]),
    (np.str_("x"), "x"),
    *((np.ones((), kind)[()], True if kind == "?" else 1) for kind in "?bhilqBHILQefdg"),
    *(
        (torch.ones((), dtype=kind), True if kind is torch.bool else 1)
        for kind in (torch.bool, torch.uint8, torch.int8, torch.int64, torch.bfloat16, torch.half)
    ),
    (torch.ones(2, requires_grad=True), [1.0, 1.0]),
    (torch.nn.Parameter(torch.tensor(0.5)), 0.5),
]


@pytest.mark.parametrize("group", ["training", "validation", "other"])
def test_trial_reports_all_json_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    with core.init() as context:
        for step, (value, _) in enumerate(ACCEPTED):
            context.train.report_metrics(group, step, {"v": value, "loss": 0.5})
    lines = reports(trial, "metrics")
    assert [line["metrics"]["v"] for line in lines] == [expected for _, expected in ACCEPTED]
    # No operation of the searcher was completed, so the code ended early without an error.
    assert reports(trial, "exit")[0]["reason"] == "stop_requested"
    (path,) = (tmp_path / "store" / "tensorboard" / "3" / "4").iterdir()
    assert len(events(path)) == 1 + len(ACCEPTED)


REFUSED: list[tuple[Any, str]] = [
    (1j, "a complex"),
    (np.complex64(1), "a complex"),
    (np.clongdouble(1), "a clongdouble"),
    (np.datetime64(1, "s"), "a datetime"),
    ({1}, "a set"),
    (object(), "an object"),
    (10**4300, "an integer of more than 4300 digits"),
    (np.array([10**4300], "O"), "an integer of more than 4300 digits"),
    (torch.ones(2, device="meta"), "a Tensor whose values cannot be read"),
    ({2: 1.0}, "has the key 2: keys must be strings"),
    ("x" * 300_000, "300,002 bytes"),
]


@pytest.mark.parametrize(("value", "problem"), REFUSED, ids=range(len(REFUSED)))
def test_refused_metric_is_named_and_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, problem: str
) -> None:
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    with core.init() as context:
        with pytest.raises(DetcloudError, match=r"\bodd\b") as raised:
            context.train.report_training_metrics(1, {"loss": 0.5, "odd": value})
        assert problem in str(raised.value)
        # The batch can be reported again without the refused value.
        context.train.report_training_metrics(1, {"loss": 0.5})
    assert [line["metrics"] for line in reports(trial, "metrics")] == [{"loss": 0.5}]


@pytest.mark.parametrize("steps", [2**53, 10**30])
def test_steps_beyond_the_limit_are_refused(steps: int) -> None:
    train = core.TrainContext(lambda kind, **fields: None, Directives, None)
    with pytest.raises(DetcloudError, match="steps_completed is"):
        train.report_metrics("g", steps, {"v": 1})


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (10**400, math.inf),
        (-(10**400), -math.inf),
        (10**39, 1e39),
        (Decimal("0.25"), 0.25),
        (np.longdouble(0.5), 0.5),
        (np.array([[0.5]]), 0.5),
        (torch.tensor([0.5], dtype=torch.bfloat16), 0.5),
        (torch.tensor(3), 3.0),
    ],
    ids=range(8),
)
def test_searcher_accepts_all_number_types(metric: Any, expected: float) -> None:
    lines: list[dict[str, object]] = []
    operation = SearcherOperation(3, lambda kind, **fields: lines.append(fields))
    operation.complete(metric)
    assert lines == [{"length": 3, "metric": expected}]


def test_a_trials_metadata_keep_huge_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path)
    enter(trial, monkeypatch)
    with core.init() as context:
        kept = context.train.set_metadata({"n": 10**400, "d": Decimal("0.5")})
        with pytest.raises(DetcloudError, match=r"metadata\.n is an integer of more than 4300"):
            context.train.set_metadata({"n": 10**4300})
    assert kept == {"n": 10**400, "d": 0.5}
    assert json.dumps(reports(trial, "trial_metadata")[0]["metadata"]) == json.dumps(kept)
