"""Files that configure something else than an experiment are told to be what they are."""

import pytest

from control_plane.config.check import check_config
from control_plane.config.other_files import OTHER_FILES
from tests.unit.config.samples import LENGTH, find_problems, to_yaml

SEARCHER = "searcher: {name: single, metric: loss}\n"


@pytest.mark.parametrize(
    ("text", "kind", "hint"),
    [
        ("db: {user: u}\ncheckpoint_storage: {type: s3}\n", "a cluster, as", "config check --clus"),
        ("resource_pools: [{pool_name: a}]\n", "a cluster, as", "config check --cluster"),
        ("master_host: a\nlabel: x\n", "an agent, as", "python -m detcloud.agent"),
        ("imageRegistry: x\ndb: {name: a}\n", "a cluster on Kubernetes", "detcloud deploy"),
        ("constraints: {priority_limit: 3}\n", "rules for configurations", "template set"),
        ("description: d\nresources: {slots: 1}\n", "a command, a notebook", "add entrypoint and"),
        ("entrypoint: [a]\nresources: {slots: 0}\n", "a command, a notebook", "add entrypoint"),
        ("idle_timeout: 30m\nbind_mounts: []\n", "a command, a notebook", "add entrypoint"),
        ("tensorboard_args: [-x]\n", "a command, a notebook", "add entrypoint"),
    ],
)
def test_a_file_of_something_else_is_told_in_one_line(text: str, kind: str, hint: str) -> None:
    (problem,) = find_problems(text)
    assert problem.path == ""
    assert problem.message.startswith(f"configures {kind}")
    assert problem.message.endswith(", no experiment")
    assert hint in problem.hint


def test_a_part_of_a_configuration_is_told_to_be_a_template() -> None:
    (problem,) = find_problems("environment: {image: a}\nmax_restarts: 1\n")
    assert problem.message == "has no entrypoint and no searcher, as a template"
    assert problem.hint.startswith("`detcloud template set NAME FILE` stores one")


def test_an_experiment_with_such_a_field_is_told_which_field_is_wrong() -> None:
    for kind in OTHER_FILES:
        for field in kind.fields:
            (problem,) = find_problems(to_yaml({**LENGTH, field: 1}))
            assert (problem.path, problem.message) == (field, "is not a known field")


def test_who_brings_the_rest_in_a_template_or_an_override_has_an_experiment() -> None:
    part = "environment: {image: a}\nresources: {slots: 2}\n"
    assert check_config(part, template=f"entrypoint: python a.py\n{SEARCHER}").era == "length"
    overrides = ["entrypoint=python a.py", "searcher={name: single, metric: loss}"]
    assert check_config(part, overrides=overrides).era == "length"


@pytest.mark.parametrize("text", ["", "# nothing\n", "entrypoint: [echo, a]\n", "unknown: 1\n"])
def test_what_may_become_an_experiment_is_told_what_it_misses(text: str) -> None:
    assert ("searcher", "is required") in {
        (problem.path, problem.message) for problem in find_problems(text)
    }
