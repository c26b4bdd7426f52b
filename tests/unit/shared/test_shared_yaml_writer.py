"""Written YAML is parsed as the original value by any reader."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from detcloud.cli.rendering.output import render_json
from detcloud.shared.yaml_writer import render_yaml

# Texts that a reader could parse as a different type or structure.
WORDS = "yes No ~ null 1e5 1_000 0x1f .inf 12:30:45 2020-01-01 - ? : # & * ! | > ' % @ ` = <<"
SHAPES = ("", " ", "a: b", "a #b", "- x", "a\nb", "a\n\nb\n", " a\nb", "a\n b", "a\n", "\n")
STRANGE = ("a\r\nb", "é\nü", "😀", "\ufeff", "a\n \nb", "\x1b[2J", "\x85", "\u2028", "a\tb\nc")
TRICKY = (*WORDS.split(), *SHAPES, *STRANGE, "x" * 2000)
TEXTS = st.text() | st.sampled_from(TRICKY) | st.text(alphabet="ab \n:-#'\"", max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_written_yaml_is_parsed_unchanged(value: Any) -> None:
    assert yaml.safe_load(render_yaml(value)) == value


@pytest.mark.parametrize("text", TRICKY)
def test_tricky_texts_stay_texts(text: str) -> None:
    assert yaml.safe_load(render_yaml({text: [text]})) == {text: [text]}


def test_yaml_layout() -> None:
    value = {
        "id": 1,
        "labels": ["first one", "2"],
        "searcher": {"name": "random", "lr": 1e-05},
        "nothing": None,
        "empty": {},
        "trials": [{"id": 1, "slots": [0, 1]}, {"id": 2, "slots": []}],
        "config": "name: x\nhyperparameters:\n  lr: 1\n",
    }
    assert render_yaml(value) == (
        "id: 1\n"
        "labels:\n"
        "  - first one\n"
        '  - "2"\n'
        "searcher:\n"
        "  name: random\n"
        "  lr: 1.0e-05\n"
        "nothing: null\n"
        "empty: {}\n"
        "trials:\n"
        "  - id: 1\n"
        "    slots:\n"
        "      - 0\n"
        "      - 1\n"
        "  - id: 2\n"
        "    slots: []\n"
        "config: |\n"
        "  name: x\n"
        "  hyperparameters:\n"
        "    lr: 1\n"
    )


def test_yaml_escapes_invisible_characters() -> None:
    assert render_yaml({"name": "a\x1b[2J\u202e"}) == 'name: "a\\u001b[2J\\u202e"\n'


def test_nan_and_infinity_have_yaml_names() -> None:
    assert render_yaml([float("nan"), float("inf"), -float("inf")]) == "- .nan\n- .inf\n- -.inf\n"


def test_yaml_refuses_non_json_types() -> None:
    with pytest.raises(TypeError, match="set"):
        render_yaml({"a": {1}})


def test_json_escapes_control_characters() -> None:
    text = "a\x7f\x1b\u202eé"
    shown = render_json({text: text}, indent=None)
    assert shown.isprintable()
    assert "é" in shown
    assert json.loads(shown) == {text: text}
