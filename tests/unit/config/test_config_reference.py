"""docs/configuration.md is generated from the models of configurations."""

from pathlib import Path
from typing import Annotated

import pytest
from annotated_types import Ge, Le

from control_plane.config import reference
from control_plane.config.check import check_config
from control_plane.config.section import Section
from control_plane.field_types import Text

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_configuration_reference_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == reference.render_reference(), "run `make references`"


def test_example_of_the_reference_is_a_valid_configuration() -> None:
    _, _, rest = reference.INTRODUCTION.partition("```yaml\n")
    example = rest.partition("```")[0]
    config = check_config(example)
    assert (config.searcher.name, config.trials, config.unit) == ("random", 8, "epochs")


def test_reference_lists_top_level_fields() -> None:
    text = reference.render_reference()
    for name in ("entrypoint", "batches_per_step", "scheduling_unit", "checkpoint_policy"):
        assert f"| `{name}` |" in text


class UndocumentedSection(Section):
    field: Text


def test_field_without_documentation_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"UndocumentedSection\.field has no meaning"):
        reference.field_rows(UndocumentedSection)


class BoundedSection(Section):
    """A section with bounds of fields."""

    plain: Annotated[int, Ge(0), Le(19)] = 0
    """A number."""
    optional: Annotated[int, Ge(0), Le(19)] | None = None
    """A number, or nothing."""


def test_reference_shows_bounds_of_optional_fields() -> None:
    text = str(list(reference.field_rows(BoundedSection)))
    assert text.count("integer 0 to 19") == 2


class LongSection(Section):
    """A section with a field of two paragraphs."""

    field: Text = ""
    """The first paragraph,
    on two lines.

    The second paragraph.
    """
    other: Text = ""
    """A single paragraph."""


def test_further_paragraphs_follow_the_table() -> None:
    lines = list(reference._table(reference.field_rows(LongSection)))
    assert lines[2:] == [
        '| `field` | string | `""` | The first paragraph, on two lines. |',
        '| `other` | string | `""` | A single paragraph. |',
        "",
        "**`field`.** The second paragraph.",
        "",
    ]
