"""Configurations of commands: allowed fields, refused fields and templates."""

from __future__ import annotations

import pytest

from control_plane.actors.records import JobKind
from control_plane.config.check import check_config
from control_plane.config.command import COMMAND_SECTIONS, COMMAND_SETTINGS, command_values
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.trial_settings import job_of, trial_settings
from tests.unit.config.samples import find_problems

COMMAND = JobKind.COMMAND
ECHO = "entrypoint: [echo, hello]\n"


def check(text: str, *overrides: str) -> ExperimentConfig:
    return check_config(text, kind=COMMAND, overrides=overrides)


def test_command_needs_only_an_entrypoint() -> None:
    config = check(ECHO)
    assert config.entrypoint == ("echo", "hello")
    assert (config.resources.slots_per_trial, config.resources.is_single_node) == (1, True)
    assert (config.searcher.name, config.max_restarts) == ("single", 0)
    assert config.searcher.is_open_ended


def test_entrypoint_text_stays_text_and_list_stays_words() -> None:
    assert check("entrypoint: echo $HOME | cat\n").entrypoint == "echo $HOME | cat"
    words = check("entrypoint: [printf, '[%s]', 'a  b', '', '$HOME']\n").entrypoint
    assert words == ("printf", "[%s]", "a  b", "", "$HOME")


def test_list_of_one_word_becomes_a_shell_line() -> None:
    assert check("entrypoint: ['echo a && echo b']\n").entrypoint == "echo a && echo b"
    assert check(ECHO, 'entrypoint=["ls *.sh"]').entrypoint == "ls *.sh"


@pytest.mark.parametrize("slots", [0, 1, 4])
def test_slots_of_a_command_become_slots_per_trial(slots: int) -> None:
    config = check(ECHO, f"resources.slots={slots}")
    assert (config.job.slots_per_trial, config.resources.slots) == (slots, None)
    assert command_values(config)["resources"]["slots"] == slots


def test_problem_of_slots_names_the_written_field() -> None:
    [problem] = find_problems(f"{ECHO}resources:\n  slots: -1\n", kind=COMMAND)
    assert (problem.path, problem.line) == ("resources.slots", 3)


@pytest.mark.parametrize(
    "field",
    [
        "searcher: {name: single}",
        "hyperparameters: {x: 1}",
        "max_restarts: 3",
        "checkpoint_storage: {type: s3, bucket: b}",
        "min_validation_period: {batches: 1}",
        "resources: {slots_per_trial: 2}",
        "resources: {is_single_node: false}",
        "resources: {deadline: 6h}",
    ],
)
def test_commands_reject_experiment_fields_with_the_line(field: str) -> None:
    [problem] = find_problems(f"{ECHO}{field}\n", kind=COMMAND)
    assert problem.path.split(".")[0] == field.split(":")[0]
    assert (problem.line, problem.message) == (2, "is for experiments")
    assert problem.hint


def test_commands_reject_templates_of_experiments() -> None:
    [problem] = find_problems(ECHO, template="max_restarts: 3\n", kind=COMMAND)
    assert (problem.path, problem.hint.endswith("on line 1 of the template")) == (
        "max_restarts",
        True,
    )


def test_commands_reject_unknown_fields() -> None:
    [problem] = find_problems(f"{ECHO}work_dir: /\n", kind=COMMAND)
    assert (problem.path, problem.line) == ("work_dir", 2)


@pytest.mark.parametrize(
    "entrypoint",
    [
        "model_def:MyTrial",
        "[python3, -m, detcloud.launch.torch_distributed, --trial, 'model_def:MyTrial']",
    ],
)
def test_commands_reject_trial_classes(entrypoint: str) -> None:
    [problem] = find_problems(f"entrypoint: {entrypoint}\n", kind=COMMAND)
    assert (problem.path, problem.message) == (
        "entrypoint",
        "trains the trial class model_def:MyTrial",
    )


def test_rejects_command_without_a_program() -> None:
    [problem] = find_problems("name: nothing\n", kind=COMMAND)
    assert (problem.path, problem.message) == ("entrypoint", "is required")


def test_command_values_have_only_command_sections_and_masked_secrets() -> None:
    text = f"{ECHO}environment: {{environment_variables: [API_TOKEN=s3cret]}}\n"
    values = command_values(check(text, "resources.slots=2"))
    assert values.keys() <= COMMAND_SECTIONS
    assert not values.keys() & COMMAND_SETTINGS.keys() - {"resources"}
    assert "s3cret" not in str(values)
    assert "API_TOKEN" in str(values)


def test_command_job_runs_once_on_one_machine_without_preemption() -> None:
    config = check(ECHO)
    job = job_of(config, 5, COMMAND)
    assert (job.preemptible, job.single_agent) == (False, True)
    assert trial_settings(config, "default", 5, COMMAND).runs_once
    assert job_of(config, 5).preemptible
