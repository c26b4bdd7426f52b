"""Phrases of sentences: counts, numbers, hyperparameters, causes, slots and checkpoints."""

from collections.abc import Mapping

from detcloud.shared.dotted_paths import join_names, nested_leaves

HPARAMS_CHARACTERS_MAX = 200
"""The most characters of rendered hyperparameters."""
CAUSE_CHARACTERS_MAX = 200
"""The most characters of a rendered cause or value."""


def count_text(count: int, noun: str) -> str:
    """Return a count with the noun, which the caller passes in the singular: `1,200 batches`."""
    plural = f"{noun}es" if noun.endswith("tch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def number_text(value: float) -> str:
    """Return a finite number with four significant digits, or an integer with all digits.

    Examples: 1.5e-05, 1000000. Integers of 1e15 and more have four digits too.
    """
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def hparams_text(hparams: Mapping[str, object]) -> str:
    """Return hyperparameters as `lr=0.01, model.depth=3`, with dotted paths of nested names.

    A text above HPARAMS_CHARACTERS_MAX is cut and ends with `...`. "" without hyperparameters.
    """
    listed = ", ".join(
        f"{join_names(names)}={_value_text(value)}" for names, value in nested_leaves(hparams)
    )
    too_long = len(listed) > HPARAMS_CHARACTERS_MAX
    return listed[:HPARAMS_CHARACTERS_MAX] + "..." if too_long else listed


def _value_text(value: object) -> str:
    """Return a float as `number_text` does, and another value as `str` does."""
    return number_text(value) if isinstance(value, float) else str(value)


def last_line(text: str) -> str:
    """Return the last line of a text that is not blank; in a traceback, the error.

    A line above CAUSE_CHARACTERS_MAX is cut and ends with `...`. "" for a blank text.
    """
    line = next(reversed(text.strip().splitlines()), "").strip()
    return line if len(line) <= CAUSE_CHARACTERS_MAX else line[:CAUSE_CHARACTERS_MAX] + "..."


def missing_metric_text(reason: str) -> str:
    """Return the phrase for a report without the searcher's metric; "" without a reason."""
    return f"without the searcher's metric: {last_line(reason)}" if reason else ""


def slots_text(slots: tuple[int, ...]) -> str:
    """Return the ids of slots, like `0, 1`; `none` without slots."""
    return ", ".join(map(str, slots)) or "none"


def uuids_text(uuids: tuple[str, ...]) -> str:
    """Return the first 8 characters of each UUID, separated by commas; "" without UUIDs."""
    return ", ".join(uuid[:8] for uuid in uuids)
