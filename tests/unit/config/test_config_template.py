"""Templates: read as hostile text, shown without secrets, and named in problems."""

from __future__ import annotations

import pytest

from control_plane.config.problems import ConfigInvalid
from control_plane.config.template import WRITTEN_BYTES_MAX, masked_template, read_template
from tests.unit.config.samples import LENGTH, find_problems, to_yaml

SHORT = to_yaml(LENGTH)
SECRET = """\
# ours
checkpoint_storage: &s3
  type: s3
  bucket: b
  secret_key: canary-5f1c
data_layer: *s3
"""


def test_template_may_be_any_part_of_a_configuration() -> None:
    template = read_template("searcher: {max_trials: 3}\nmax_restarts: 1\n")
    assert template.tree == {"searcher": {"max_trials": 3}, "max_restarts": 1}
    assert (template.line_of(("max_restarts",)), template.line_of(("name",))) == (2, None)
    assert read_template("").tree == {}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[1, 2]", 1, "must be a map of fields"),
        ("a: 1\nb: [", 2, "is not valid YAML"),
        ("a: &x [*x]", 1, "contains itself"),
        ("---\na: 1\n---\nb: 2\n", 3, "more than one YAML document"),
        ("a: " + "[" * 100 + "]" * 100, 1, "nested deeper"),
    ],
)
def test_malformed_template_is_refused_with_the_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        masked_template(text)
    (problem,) = caught.value.problems
    assert problem.line == line
    assert message in problem.message


def test_unreadable_template_values_are_refused_with_lines() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        masked_template("a: !!python/object:os.system x\nb: 1\nb: 2\n")
    places = [(problem.path, problem.line) for problem in caught.value.problems]
    assert places == [("a", 1), ("b", 2)]


def test_template_without_secrets_is_shown_unchanged() -> None:
    text = "# a note\nmax_restarts:   1\n"
    assert masked_template(text) == text


def test_template_with_masked_secrets_keeps_other_values() -> None:
    shown = masked_template(SECRET)
    assert "canary" not in shown
    tree = read_template(shown).tree
    assert tree["checkpoint_storage"] == {"type": "s3", "bucket": "b", "secret_key": "********"}
    assert tree["data_layer"] == tree["checkpoint_storage"]


def test_expansion_of_aliases_is_limited() -> None:
    # 2,000 aliases of 1,000 characters are 2 MB.
    text = f"token: t\na: &a {'x' * 1000}\nb: [{', '.join(['*a'] * 2000)}]\n"
    assert len(text) < WRITTEN_BYTES_MAX
    with pytest.raises(ConfigInvalid, match="aliases are written out"):
        masked_template(text)


def test_problems_have_lines_of_template_and_configuration() -> None:
    template = "max_restarts: -1\nresources:\n  slots_per_trial: -2\n"
    problems = find_problems("scheduling_unit: -3\n" + SHORT, template=template)
    places = {problem.path: (problem.line, problem.hint) for problem in problems}
    assert places == {
        "scheduling_unit": (1, ""),
        "max_restarts": (None, "on line 1 of the template"),
        "resources.slots_per_trial": (None, "on line 3 of the template"),
    }


def test_problem_of_a_merged_section_is_found_in_the_template() -> None:
    mine = "resources: {weight: 2}\n"
    (problem,) = find_problems(mine + SHORT, template="resources:\n  max_slots: -1\n")
    assert (problem.path, problem.line) == ("resources.max_slots", None)
    assert problem.hint == "on line 2 of the template"


def test_user_value_is_blamed_over_an_unreadable_template_value() -> None:
    problems = find_problems("max_restarts: -1\n" + SHORT, template="max_restarts: !!int 3\n")
    hint = "on line 1; quote a value to make it a string; on line 1 of the template"
    assert [(problem.line, problem.hint) for problem in problems] == [(1, ""), (None, hint)]


def test_missing_field_points_at_the_template_section() -> None:
    text = to_yaml({name: value for name, value in LENGTH.items() if name != "searcher"})
    (problem,) = find_problems(text, template="max_restarts: 1\nsearcher:\n  name: single\n")[:1]
    assert problem.path.startswith("searcher")
    assert problem.hint.endswith("on line 2 of the template")


def test_problem_of_a_merged_list_entry_is_found_in_the_template() -> None:
    mount = "{host_path: /a, container_path: x}"
    template = f"bind_mounts:\n  - {mount}\n  - {{host_path: b, container_path: y}}\n"
    mine = "bind_mounts: [{host_path: /c, container_path: z}]\n"
    (problem,) = find_problems(mine + SHORT, template=template)
    # After the merge, the template's second entry is the third.
    assert problem.path == "bind_mounts[2].host_path"
    assert (problem.line, problem.hint.split("; ")[-1]) == (None, "on line 3 of the template")


@pytest.mark.parametrize("name", ["password", "auth", "identitytoken", "registrytoken"])
def test_registry_secrets_of_a_template_are_masked(name: str) -> None:
    text = f"environment: {{registry_auth: {{username: u, {name}: canary-5f1c}}}}\n"
    masked = masked_template(text)
    assert "canary" not in masked
    assert "username: u" in masked
