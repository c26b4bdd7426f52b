"""Files that configure clusters, agents or commands are recognized and refused."""

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
        ("tensorboard_args: [-x]\n", "a command, a notebook", "add entrypoint"),
    ],
)
def test_files_of_other_kinds_are_recognized(text: str, kind: str, hint: str) -> None:
    (problem,) = find_problems(text)
    assert problem.path == ""
    assert problem.message.startswith(f"configures {kind}")
    assert problem.message.endswith(", no experiment")
    assert hint in problem.hint


def test_partial_configuration_is_recognized_as_a_template() -> None:
    (problem,) = find_problems("environment: {image: a}\nmax_restarts: 1\n")
    assert problem.message == "has no entrypoint and no searcher, as a template"
    assert problem.hint.startswith("`detcloud template set NAME FILE` stores one")


def test_experiment_with_a_foreign_field_names_the_unknown_field() -> None:
    for kind in OTHER_FILES:
        for field in kind.fields:
            (problem,) = find_problems(to_yaml({**LENGTH, field: 1}))
            assert (problem.path, problem.message) == (field, "is not a known field")


def test_partial_configuration_is_completed_by_template_or_overrides() -> None:
    part = "environment: {image: a}\nresources: {slots: 2}\n"
    assert check_config(part, template=f"entrypoint: python a.py\n{SEARCHER}").era == "length"
    overrides = ["entrypoint=python a.py", "searcher={name: single, metric: loss}"]
    assert check_config(part, overrides=overrides).era == "length"


@pytest.mark.parametrize("text", ["", "# nothing\n", "entrypoint: [echo, a]\n", "unknown: 1\n"])
def test_incomplete_experiment_reports_the_missing_searcher(text: str) -> None:
    assert ("searcher", "is required") in {
        (problem.path, problem.message) for problem in find_problems(text)
    }
