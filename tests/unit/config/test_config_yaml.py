from __future__ import annotations

import math

import pytest

from control_plane.config.check import check_config
from control_plane.config.problems import ConfigInvalid
from control_plane.config.yaml_document import line_of, parse_document, parse_scalar
from tests.unit.config.samples import LENGTH, find_problems, to_yaml

VALID = to_yaml(LENGTH)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("yes", True),
        ("Off", False),
        ("1", 1),
        ("-1_000", -1000),
        ("0x1F", 31),
        ("010", 8),
        ("0o17", 15),
        ("08", "08"),
        ("0x_", "0x_"),
        ("1e-3", 0.001),
        ("1.5", 1.5),
        (".5E2", 50.0),
        (".inf", math.inf),
        ("-.Inf", -math.inf),
        ("1e999", math.inf),
        ("9" * 5000, math.inf),
        ("2020-01-01", "2020-01-01"),
        ("12:30", "12:30"),
        ("e3", "e3"),
        (".", "."),
    ],
)
def test_plain_scalars_are_read_with_types(text: str, value: object) -> None:
    scalar = parse_scalar(text)
    assert (type(scalar), scalar) == (type(value), value)


def test_nan_is_read_as_a_float() -> None:
    scalar = parse_scalar(".nan")
    assert isinstance(scalar, float)
    assert math.isnan(scalar)


def test_keys_stay_text_as_written() -> None:
    assert parse_document("{on: 1, 5: 2, '~': 3, 1e3: 4}").tree == {
        "on": 1,
        "5": 2,
        "~": 3,
        "1e3": 4,
    }


def test_merge_keys_add_missing_keys() -> None:
    text = "base: &b {x: 1, y: 2}\nother: &o {y: 3, z: 4}\nall: {<<: [*b, *o], x: 0}\n"
    assert parse_document(text).tree == {
        "base": {"x": 1, "y": 2},
        "other": {"y": 3, "z": 4},
        "all": {"x": 0, "y": 2, "z": 4},
    }


def test_lines_count_from_one_and_point_at_keys() -> None:
    place = parse_document("a: 1\nb:\n  c:\n    - 1\n    - d: 2\n").place
    assert line_of(place, ("b", "c", 1, "d")) == (5, True)
    assert line_of(place, ("b", "c")) == (3, True)
    assert line_of(place, ("b", "x", "y")) == (2, False)
    assert line_of(place, ("x",)) == (None, False)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: [1, 2", "is not valid YAML", 1),
        ("a: 1\n\tb: 2", "is not valid YAML", 2),
        ("a: 1\n--- \nb: 2", "contains more than one YAML document", 2),
        ("- 1", "must be a map of fields", 1),
        ("just words", "must be a map of fields", 1),
        ("a: *b", "the alias *b refers to no anchor", 1),
        ("a: &b [*b]", "the alias *b contains itself", 1),
        ("? [1]\n: 2", "has a key that is not a plain string", 1),
        ("a: " + "[" * 70 + "]" * 70, "is nested deeper than 64 levels", 1),
        ("data: '\\ud800'".replace("'", '"'), "is not valid YAML", None),
        ("data: \ud800", "is not valid YAML: the text is not valid Unicode", None),
        ("a: '" + "x" * (1 << 20) + "'", "has more than the 1048576 bytes allowed", None),
        ("a: [" + "1," * 100_001 + "]", "contains more than 100000 values", 1),
    ],
)
def test_malformed_text_is_a_single_problem(text: str, message: str, line: int | None) -> None:
    (problem,) = find_problems(text)
    assert message in problem.message
    if line is not None:
        assert problem.line == line


@pytest.mark.parametrize(
    ("extra", "path", "message"),
    [
        ("name: a\nname: b\n", "name", "is given twice"),
        ("data: {x: {y: 1, y: 2}}\n", "data.x.y", "is given twice"),
        ("data: !!python/object:os.system {}\n", "data", "tags are not allowed"),
        ("name: !!str 5\n", "name", "tags are not allowed"),
        ("data: {x: .nan}\n", "data.x", "must be a finite number"),
        ("data: {x: [1e999]}\n", "data.x[0]", "must be a finite number"),
        ("data: {x: 18446744073709551616}\n", "data.x", "is an integer beyond 64 bits"),
        ('data: {x: "\\0"}\n', "data.x", "contains a NUL character"),
        ("resources: {weight: .inf}\n", "resources.weight", "must be a finite number"),
        ("max_restarts: 99999999999999999999999\n", "max_restarts", "beyond 64 bits"),
        ("data: {<<: 5}\n", "data.<<", "must be a map or a list of maps"),
    ],
)
def test_unusable_value_is_reported_once_with_the_line(extra: str, path: str, message: str) -> None:
    (problem,) = find_problems(VALID + extra)
    assert problem.path == path
    assert message in problem.message
    # VALID has 6 lines; a repeated name is reported at the first line.
    assert problem.line == 7


@pytest.mark.parametrize(("character", "name"), [("\0", "U+0000"), ("\x07", "U+0007")])
def test_control_character_is_reported_with_the_line(character: str, name: str) -> None:
    (problem,) = find_problems(f"name: é\n# 😀\ndata: {{x: {character}}}\n")
    assert problem.line == 3
    assert problem.message == f"is not valid YAML: the control character {name} is not allowed"


def test_exploding_aliases_are_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (problem,) = find_problems("\n".join(lines))
    assert "counting what aliases repeat" in problem.message


def test_deep_chain_of_aliases_is_refused_quickly() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 400)]
    (problem,) = find_problems("\n".join(lines))
    assert "nested deeper" in problem.message


def test_empty_file_reports_the_required_fields() -> None:
    assert [problem.path for problem in find_problems("")] == ["entrypoint", "searcher"]


def test_all_problems_are_reported_in_line_order() -> None:
    text = """\
entrypoint: model_def:MyTrial
max_restarts: -1
max_restart: 3
hyperparameters:
  lr: {type: double, minval: 2, maxval: 1}
  lr2: {type: doubel, minval: 2, maxval: 1}
searcher:
  name: random
  metrik: loss
  max_trial: 5
  max_length: {batch: 5}
resources:
  slots_per_trial: 4
  max_slots: 2
"""
    problems = [
        (problem.line, problem.path, problem.message, problem.hint)
        for problem in find_problems(text)
    ]
    assert [item[:2] for item in problems] == [
        (2, "max_restarts"),
        (3, "max_restart"),
        (5, "hyperparameters.lr.maxval"),
        (6, "hyperparameters.lr2.type"),
        (7, "searcher.max_trials"),
        (7, "searcher.metric"),
        (9, "searcher.metrik"),
        (10, "searcher.max_trial"),
        (11, "searcher.max_length.batch"),
        (14, "resources.max_slots"),
    ]
    hints = {path: hint for _, path, _, hint in problems}
    assert hints["max_restart"] == "did you mean max_restarts?"
    assert hints["searcher.metrik"] == "did you mean metric?"
    assert hints["searcher.max_trial"] == "did you mean max_trials?"
    assert hints["searcher.max_length.batch"] == "did you mean batches?"
    assert hints["hyperparameters.lr2.type"] == "did you mean double?"


def test_problem_is_rendered_in_one_line() -> None:
    (problem,) = find_problems(VALID + "max_restarts: -1\n")
    assert problem.text("my.yaml") == "my.yaml:7: max_restarts: must be at least 0, not -1"


def test_error_message_lists_the_problems() -> None:
    with pytest.raises(ConfigInvalid, match="config:1: must be a map of fields"):
        check_config("[]")


@pytest.mark.parametrize("inner", ["\u2028", "\u2029", "\x85"])
def test_lines_are_counted_as_in_editors(inner: str) -> None:
    text = f'name: "a{inner}{inner}b"\r\ndata:\n  x: "{inner}"\n  y: 1\n'
    place = parse_document(text).place
    assert line_of(place, ("data",)) == (2, True)
    assert line_of(place, ("data", "y")) == (4, True)
    (problem,) = find_problems(f'name: "a{inner}b"\nentrypoint: [1\n')
    assert problem.line == 2
