"""Needs for devices in `resources`: slot_type and slot_memory."""

import pytest

from control_plane.config.command import command_values
from control_plane.config.trial_settings import job_of
from tests.unit.config.samples import LENGTH, STEP, check_changed, find_messages

GIB = 2**30


@pytest.mark.parametrize("base", [STEP, LENGTH])
def test_job_has_the_needs_of_the_configuration(base: dict[str, object]) -> None:
    needs = {"resources.slot_type": " RTX 4090 ", "resources.slot_memory": "20 gb"}
    job = job_of(check_changed(base, needs), 1)
    assert (job.slot_type, job.slot_memory) == ("RTX 4090", 20 * GIB)
    assert job.needs.text == "slot_type RTX 4090 and slot_memory 20 GiB"


def test_job_without_needs_runs_on_any_device() -> None:
    job = job_of(check_changed(LENGTH, {}), 1)
    assert (job.slot_type, job.slot_memory, job.needs.text) == ("", 0, "")


@pytest.mark.parametrize("text", ["-", "  / "])
def test_rejects_slot_type_without_letters_and_digits(text: str) -> None:
    (message,) = find_messages(LENGTH, {"resources.slot_type": text}).values()
    assert "must be cuda, rocm, mps, cpu or the name of a device" in message


def test_rejects_overlong_slot_type() -> None:
    (message,) = find_messages(LENGTH, {"resources.slot_type": "H" * 81}).values()
    assert "must have at most 80 characters, not 81" in message


def test_rejects_slot_memory_of_another_form() -> None:
    (message,) = find_messages(LENGTH, {"resources.slot_memory": "much"}).values()
    assert "must be a number of bytes or a size like '1.5 gb'" in message


@pytest.mark.parametrize("need", [{"slot_type": "H100"}, {"slot_memory": 1}])
def test_rejects_needs_of_trials_without_slots(need: dict[str, object]) -> None:
    changes = {f"resources.{name}": value for name, value in need.items()}
    (message,) = find_messages(LENGTH, {"resources.slots_per_trial": 0, **changes}).values()
    assert "needs a slot, and the trials have none" in message


def test_command_shows_its_needs() -> None:
    config = check_changed(LENGTH, {"resources.slot_type": "H100"})
    assert command_values(config)["resources"]["slot_type"] == "H100"
