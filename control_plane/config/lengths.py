"""Lengths of training: an amount in the unit the configuration counts in.

A step is a unit beside batches, records and epochs; a length becomes batches only where a trial is
told what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args

from pydantic import PlainSerializer, PlainValidator

from control_plane.actors.lengths import Lengths, Unit
from control_plane.config.problems import nearest, value_text
from control_plane.config.section import COUNT_MAX, refuse, refuse_at

LengthUnit = Literal["batches", "records", "epochs"]
LENGTH_UNITS: Final = get_args(LengthUnit)


@dataclass(frozen=True, slots=True)
class Length:
    """`count` of `unit`; 0 switches a period off."""

    unit: Unit
    count: int


@dataclass(frozen=True, slots=True)
class Scale:
    """What units other than batches are worth; 0 where the configuration does not say."""

    batches_per_step: int = 0
    records_per_epoch: int = 0

    def batches(self, length: Length, hparams: Mapping[str, object]) -> int:
        """Batches in `length`, rounded down; at least 1 for records and epochs above 0.

        Raises:
            ValueError: records or epochs without an integer global_batch_size of at least 1.
        """
        if not length.count:
            return 0
        _check_batch_size(length.unit, hparams)
        return self.lengths(length.unit).batches(length.count, hparams)

    def units(self, unit: Unit, batches: int, hparams: Mapping[str, object]) -> float:
        """How many of `unit` were done after `batches`; ValueError as above."""
        _check_batch_size(unit, hparams)
        return self.lengths(unit).units(batches, hparams)

    def lengths(self, unit: Unit) -> Lengths:
        """How `unit` is counted in batches."""
        return Lengths(unit, self.batches_per_step, self.records_per_epoch)


def is_count(value: object, least: int) -> bool:
    """Whether `value` is an integer (and no boolean) that counts something."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= COUNT_MAX


def _check_batch_size(unit: Unit, hparams: Mapping[str, object]) -> None:
    size = hparams.get("global_batch_size")
    if unit in ("records", "epochs") and not is_count(size, 1):
        raise ValueError(
            "the hyperparameter global_batch_size must be an integer of at least 1 to convert "
            f"records or epochs to batches, not {value_text(size)}"
        )


def _steps(value: object) -> Length:
    if not isinstance(value, int) or not is_count(value, 1):
        refuse(f"must be a number of steps, {_range(value, 1)}, not {value_text(value)}")
    return Length("steps", value)


def _length(value: object) -> Length:
    if isinstance(value, int) and not isinstance(value, bool):
        if not is_count(value, 1):
            refuse(f"must be {_range(value, 1)}, not {value}")
        return Length("batches", value)
    if not isinstance(value, Mapping):
        refuse(f"must be a length like {{batches: 100}}, not {value_text(value)}")
    return _measured(value, least=1)


def _period(value: object) -> Length:
    if not isinstance(value, Mapping):
        refuse(f"must be a length like {{batches: 100}}, not {value_text(value)}")
    return _measured(value, least=0)


def _measured(value: Mapping[str, object], least: int) -> Length:
    for name in value:
        if name not in LENGTH_UNITS:
            refuse_at((name,), "is not a known unit", nearest(name, LENGTH_UNITS))
    given = {name: count for name, count in value.items() if count is not None}
    if len(given) != 1:
        refuse("must have exactly one of batches, records and epochs", "keep one of them")
    for unit in LENGTH_UNITS:
        count = given.get(unit, least)
        if not isinstance(count, int) or not is_count(count, least):
            message = f"must be an integer of {_range(count, least)}, not {value_text(count)}"
            refuse_at((unit,), message, "", count)
    unit, count = next((unit, given[unit]) for unit in LENGTH_UNITS if unit in given)
    assert isinstance(count, int)
    return Length(unit, count)


def _range(value: object, least: int) -> str:
    """The bound that a refused value misses."""
    is_more = isinstance(value, int) and value > COUNT_MAX
    return f"at most {COUNT_MAX}" if is_more else f"at least {least}"


Steps = Annotated[Length, PlainValidator(_steps), PlainSerializer(lambda length: length.count)]
Measured = Annotated[
    Length, PlainValidator(_length), PlainSerializer(lambda length: {length.unit: length.count})
]
Period = Annotated[
    Length, PlainValidator(_period), PlainSerializer(lambda length: {length.unit: length.count})
]
