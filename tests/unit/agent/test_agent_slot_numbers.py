"""The numbers of GPUs after reboots, losses and replacements."""

from __future__ import annotations

from pathlib import Path

from detcloud.agent.slot_numbers import ABSENT_MAX, FILE, keep_numbers
from detcloud.agent.slots import Slot, cpu_slots


def gpus(*uuids: str) -> list[Slot]:
    return [Slot(number, "cuda", uuid, "A100") for number, uuid in enumerate(uuids)]


def numbers(slots: list[Slot]) -> dict[str, int]:
    return {slot.uuid: slot.id for slot in slots}


def test_number_survives_another_order(tmp_path: Path) -> None:
    assert numbers(keep_numbers(gpus("a", "b", "c"), tmp_path)) == {"a": 0, "b": 1, "c": 2}
    assert [slot.uuid for slot in keep_numbers(gpus("c", "a", "b"), tmp_path)] == ["a", "b", "c"]


def test_number_of_a_lost_gpu_is_not_given_to_another(tmp_path: Path) -> None:
    keep_numbers(gpus("a", "b"), tmp_path)
    assert numbers(keep_numbers(gpus("b"), tmp_path)) == {"b": 1}
    assert numbers(keep_numbers(gpus("new", "b"), tmp_path)) == {"new": 2, "b": 1}
    assert numbers(keep_numbers(gpus("b", "a", "new"), tmp_path)) == {"a": 0, "b": 1, "new": 2}


def test_numbers_of_few_absent_devices_are_stored(tmp_path: Path) -> None:
    for number in range(ABSENT_MAX + 10):
        keep_numbers(gpus(f"MIG-{number}"), tmp_path)
    assert (tmp_path / FILE).read_text().count("MIG-") == ABSENT_MAX + 1


def test_damaged_file_counts_as_empty(tmp_path: Path) -> None:
    for text in ("{", '{"a": -1, "b": "x", "c": true}', "[]"):
        (tmp_path / FILE).write_text(text)
        assert numbers(keep_numbers(gpus("a", "b", "c"), tmp_path)) == {"a": 0, "b": 1, "c": 2}


def test_unwritable_file_does_not_stop_the_agent(tmp_path: Path) -> None:
    assert numbers(keep_numbers(gpus("a"), tmp_path / "missing")) == {"a": 0}


def test_cpu_slots_have_no_file(tmp_path: Path) -> None:
    assert keep_numbers(cpu_slots(2), tmp_path) == cpu_slots(2)
    assert not (tmp_path / FILE).exists()
