"""The terms of filters of experiments, as conditions on listing rows and on looked-up facts.

docs/web-page.md describes the filters for users. Conditions on listing rows cost nothing further.
Conditions on facts need the rows or states that `listed_facts.py` reads.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard

from control_plane.actors.experiment.listing import ListingRow
from control_plane.actors.metadata_terms import parse_term
from control_plane.actors.records import Status
from control_plane.errors import Code, Detail, RequestError
from control_plane.queries.conditions import EXPERIMENT_CONDITIONS, statuses_of
from control_plane.queries.experiment import Experiment
from control_plane.queries.experiment_columns import hparam_path
from control_plane.queries.filter_text import FilterInvalid, Term, Value, parse_filter
from control_plane.queries.listed_facts import Facts, Need
from control_plane.queries.state_filter import StateFilter, parse_experiment_states
from control_plane.queries.time_terms import is_time_met, parse_time_range

ME: Final = "me"
"""The value of `user:` that stands for the caller."""
FAILED_TRIALS: Final = "failed-trials"
FORKED_FROM: Final = "forked-from"
ENDED: Final = "ended"
"""The value of `state:` that stands for all final states."""

RowCondition = Callable[[str, ListingRow], bool]
"""A condition on an experiment's sort key and listing row."""
FactCondition = Callable[[Facts], bool]
ItemCondition = Callable[[Experiment], bool]
"""A condition on a described experiment, whose condition is known."""
_Compare = Callable[[float, float], bool]

_COMPARISONS: Final[Mapping[str, _Compare]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PLAIN_VALUE = re.compile(r'[^\s",]+')
_NAMED_KEYS = frozenset({"metric", "hparam", "metadata"})
_TEXT_KEYS = ("state", "user", "label", "name", "workspace", "project", "archived", FAILED_TRIALS)
_NUMBER_KEYS = ("id", "best", "progress", "cost")
_TIME_KEYS = ("submitted", "ended")
_KEYS = (*_TEXT_KEYS, *_NUMBER_KEYS, *_TIME_KEYS, FORKED_FROM, *sorted(_NAMED_KEYS))
# The keys of terms that rows of the experiment decide, which are found by the term's value.
_INDEXED_KEYS = (FORKED_FROM, "metadata")
_ID = re.compile(r"[1-9][0-9]{0,11}")
_FLAGS = {"true": (True,), "false": (False,)}
_ARCHIVED = {**_FLAGS, "all": (True, False)}
_MICROS_PER_DOLLAR = 1e6


@dataclass(frozen=True)
class Conditions:
    """The conditions of a filter, all of which must hold."""

    rows: tuple[RowCondition, ...] = ()
    """The conditions on listing rows. A row may meet the conditions although its item does not."""
    facts: tuple[FactCondition, ...] = ()
    items: tuple[ItemCondition, ...] = ()
    needs: frozenset[Need] = frozenset()
    """The facts that the conditions on facts read."""
    metadata: tuple[str, ...] = ()
    """Metadata terms (actors/metadata_terms.py) that the experiment has."""
    originals: tuple[int, ...] = ()
    """The ids of the experiments of which the experiment is a fork."""
    names_archived: bool = False
    """Whether the filter decides whether archived experiments match."""


def parse_conditions(text: str, caller: str, now_ms: int) -> Conditions:
    """Parse a filter of experiments.

    Args:
        text: the filter. A text of white space has no conditions.
        caller: the user that `user:me` stands for.
        now_ms: the present time in epoch ms, from which ages count.

    Raises:
        RequestError: invalid, with the place of the wrong part in `column`.
    """
    try:
        terms = parse_filter(text, _NAMED_KEYS)
        for term in terms:
            _check_name(term)
        rows = [_row_condition(term, caller) for term in terms if _is_on_row(term)]
        facts = [_fact_condition(term, now_ms) for term in terms if _need_of(term) is not None]
        items = [_item_condition(term) for term in terms if term.key in ("state", FAILED_TRIALS)]
        metadata = [_metadata_term(term) for term in terms if term.key == "metadata"]
        originals = [_original_id(term) for term in terms if term.key == FORKED_FROM]
    except FilterInvalid as error:
        detail = Detail("filter", str(error), column=error.place)
        raise RequestError(Code.INVALID, f"filter: {error}", [detail]) from None
    return Conditions(
        tuple(rows),
        tuple(facts),
        tuple(items),
        frozenset(need for term in terms if (need := _need_of(term)) is not None),
        tuple(dict.fromkeys(metadata)),
        tuple(dict.fromkeys(originals)),
        any(term.key == "archived" for term in terms),
    )


def narrow_to_workspace(text: str, workspace: str) -> str:
    """Return a filter with the term `workspace:NAME` in front.

    A filter that contains the term is returned unchanged.

    Args:
        text: a filter that `parse_conditions` accepts.
        workspace: the name of the workspace.

    Raises:
        RequestError: invalid, if the filter selects other workspaces.
    """
    for term in parse_filter(text, _NAMED_KEYS):
        if term.key == "workspace" and not term.is_negated:
            if [value.text for value in term.values] == [workspace]:
                return text
            expected = f"{_workspace_term(workspace)}, because the view is of this workspace"
            error = FilterInvalid(term.place, term.text, expected)
            detail = Detail("filter", str(error), column=error.place)
            raise RequestError(Code.INVALID, f"filter: {error}", [detail])
    return f"{_workspace_term(workspace)} {text}".rstrip()


def _workspace_term(workspace: str) -> str:
    """Return the term of a workspace, in double quotes unless the name is plain."""
    is_plain = _PLAIN_VALUE.fullmatch(workspace) is not None
    return f"workspace:{workspace if is_plain else json.dumps(workspace, ensure_ascii=False)}"


def _check_name(term: Term) -> None:
    """Check that a name follows a key that needs a name.

    Raises:
        FilterInvalid: the name is missing.
    """
    if term.key in _NAMED_KEYS and not term.name:
        example = "metadata:key=value" if term.key == "metadata" else f"{term.key}:loss<0.3"
        raise FilterInvalid(term.key_place, term.text, f"a name after the key, as in {example}")


def _is_on_row(term: Term) -> bool:
    """Return whether the listing row decides the term."""
    return term.key in ("", "id", *_TEXT_KEYS)


def _need_of(term: Term) -> Need | None:
    """Return the kind of facts that the term needs. Return None if the term needs no facts.

    Raises:
        FilterInvalid: the term's key is not known, and the term is not a comparison of a
            hyperparameter.
    """
    if term.key in ("best", "progress", "cost"):
        return "figures"
    if term.key in _TIME_KEYS:
        return "times"
    if term.key == "metric":
        return "metrics"
    if _is_on_row(term) or term.key in _INDEXED_KEYS:
        return None
    if term.key == "hparam" or not term.has_colon:
        return "hparams"
    expected = f"one of {', '.join(_KEYS)}, or a hyperparameter with =, !=, <, <=, > or >="
    raise FilterInvalid(term.key_place, term.key, expected)


def _row_condition(term: Term, caller: str) -> RowCondition:
    """Return the condition of a term that the listing row decides.

    Raises:
        FilterInvalid: the term's value or comparison does not fit the key.
    """
    negated = term.is_negated
    if term.key == "id":
        is_met = _number_condition(term, "id>100")
        return lambda sort, row: is_met(int(sort)) != negated
    if term.operator != "=":
        expected = f"{term.key}: and a value, because only numbers have a size"
        raise FilterInvalid(term.key_place, term.text, expected)
    if term.key in ("", "name"):
        parts = tuple(value.text.casefold() for value in term.values)
        return lambda sort, row: any(part in row.name.casefold() for part in parts) != negated
    if term.key == "label":
        labels = frozenset(value.text for value in term.values)
        return lambda sort, row: (not labels.isdisjoint(row.labels)) != negated
    if term.key == "archived":
        archived = {flag for value in term.values for flag in _flags(value, _ARCHIVED)}
        return lambda sort, row: (row.archived in archived) != negated
    if term.key == "state":
        return _possible_condition(term)
    if term.key == FAILED_TRIALS:
        failed = {flag for value in term.values for flag in _flags(value, _FLAGS)}
        return lambda sort, row: (
            row.has_failed_trials is None or (row.has_failed_trials in failed) != negated
        )
    allowed = _allowed_texts(term, caller)
    read: Callable[[ListingRow], str] = operator.attrgetter(term.key)
    return lambda sort, row: (read(row) in allowed) != negated


def _allowed_texts(term: Term, caller: str) -> frozenset[str]:
    """Return the texts of a user, a workspace or a project that meet the term."""
    if term.key == "user":
        return frozenset(
            caller if value.text == ME and not value.is_quoted else value.text
            for value in term.values
        )
    return frozenset(value.text for value in term.values)


def _state_filter(term: Term) -> StateFilter:
    """Return the filter of a term of states: conditions such as `queued`, stored states and ENDED.

    Raises:
        FilterInvalid: a value is neither a condition nor a state.
    """
    statuses, words = set[str](), set[str]()
    for value in term.values:
        if value.text == ENDED:
            statuses |= {status for status in Status if status.is_final}
            continue
        try:
            parsed = parse_experiment_states(value.text)
        except RequestError:
            expected = f"one of {', '.join((*EXPERIMENT_CONDITIONS, ENDED))}, or a stored state"
            raise FilterInvalid(value.place, value.text, expected) from None
        statuses |= parsed.statuses
        words |= parsed.conditions
    return StateFilter(frozenset(statuses), frozenset(words))


def _possible_condition(term: Term) -> RowCondition:
    """Return whether an experiment may match a term of states, as far as the row tells.

    Raises:
        FilterInvalid: a value is neither a condition nor a state.
    """
    states, negated = _state_filter(term), term.is_negated
    possible = {
        status: any(
            states.matches(status, word) != negated
            for word in EXPERIMENT_CONDITIONS
            if status in statuses_of(word)
        )
        for status in Status
    }
    return lambda sort, row: possible[Status(row.state)]


def _item_condition(term: Term) -> ItemCondition:
    """Return the exact condition of a term of states or of failed trials.

    Raises:
        FilterInvalid: a value does not fit the key.
    """
    negated = term.is_negated
    if term.key == FAILED_TRIALS:
        flags = {flag for value in term.values for flag in _flags(value, _FLAGS)}
        return lambda item: ((item.trials.errored > 0) in flags) != negated
    states = _state_filter(term)
    return lambda item: states.matches(item.state, item.condition) != negated


def _flags(value: Value, known: Mapping[str, tuple[bool, ...]]) -> tuple[bool, ...]:
    """Return the flags that a value stands for.

    Raises:
        FilterInvalid: the value is not known.
    """
    if value.text not in known:
        raise FilterInvalid(value.place, value.text, f"one of {', '.join(known)}")
    return known[value.text]


def _fact_condition(term: Term, now_ms: int) -> FactCondition:
    """Return the condition of a term that needs facts. Ages count from `now_ms`.

    Raises:
        FilterInvalid: the term's value does not fit the key.
    """
    negated = term.is_negated
    if term.key == "cost":
        is_met = _number_condition(term, "cost>5")
        return lambda facts: is_met(facts.cost_micros / _MICROS_PER_DOLLAR) != negated
    if term.key == "progress":
        is_met = _number_condition(term, "progress>50%")
        return lambda facts: is_met(facts.progress) != negated
    if term.key == "best":
        is_met = _number_condition(term, "best<0.3")
        return lambda facts: is_met(facts.metric) != negated
    if term.key in _TIME_KEYS:
        is_time = _time_condition(term, now_ms)
        return lambda facts: is_time(facts) != negated
    if term.key == "metric":
        is_met, name = _number_condition(term, "metric:loss<0.3"), term.plain_name
        return lambda facts: is_met(facts.metrics.get(name)) != negated
    path = hparam_path(term.name if term.key == "hparam" else term.key)
    is_value_met = _hparam_condition(term)
    return lambda facts: is_value_met(facts.hparams.get(path)) != negated


def _time_condition(term: Term, now_ms: int) -> FactCondition:
    """Return the condition of `submitted` or `ended`, before negation.

    Raises:
        FilterInvalid: a value is neither a day nor an age.
    """
    ranges = [parse_time_range(value, term.operator, term.key, now_ms) for value in term.values]
    read: Callable[[Facts], int | None] = operator.attrgetter(f"{term.key}_ms")
    return lambda facts: any(is_time_met(read(facts), term.operator, one) for one in ranges)


def _number_condition(term: Term, example: str) -> Callable[[float | None], bool]:
    """Return a condition on a number. None does not meet the condition.

    Raises:
        FilterInvalid: a value is not a number.
    """
    compare = _COMPARISONS[term.operator]
    numbers = [_number(term, value, example) for value in term.values]
    return lambda found: found is not None and any(compare(found, number) for number in numbers)


def _number(term: Term, value: Value, example: str) -> float:
    """Return a value as a number. A progress may be in percent.

    Raises:
        FilterInvalid: the value is not a number.
    """
    if term.key == "progress" and value.text.endswith("%"):
        return Value(value.place, value.text[:-1]).to_number(example) / 100
    return value.to_number(example)


def _hparam_condition(term: Term) -> Callable[[object], bool]:
    """Return a condition on a hyperparameter in the form of the values row.

    None does not meet the condition.

    A range or a choice meets the condition if one of its values does.

    Raises:
        FilterInvalid: a comparison by size with a value that is not a number.
    """
    compare = _COMPARISONS[term.operator]
    if term.operator != "=":
        number = term.values[0].to_number(f"{term.key}{term.operator}0.01")
        end: Literal["min", "max"] = "min" if term.operator in ("<", "<=") else "max"
        return lambda found: any(
            compare(one, number) for one in _compared_values(found, end) if _is_number(one)
        )
    return lambda found: any(_equals(found, value) for value in term.values)


def _compared_values(found: object, end: Literal["min", "max"]) -> list[object]:
    """Return the values of a hyperparameter that decide a comparison: the constant, the choices, or
    the named end of the range.
    """
    match found:
        case {"any": [*choices]}:
            return choices
        case {"min": minimum, "max": maximum}:
            return [minimum if end == "min" else maximum]
    return [found]


def _equals(found: object, value: Value) -> bool:
    """Return whether a hyperparameter has a value, or can have the value in a search."""
    try:
        number = None if value.is_quoted else value.to_number("")
    except FilterInvalid:
        number = None
    match found:
        case {"min": minimum, "max": maximum}:
            return number is not None and minimum <= number <= maximum
        case {"any": [*choices]}:
            return any(_equals(choice, value) for choice in choices)
        case bool():
            return value.text == str(found).lower()
        case int() | float():
            return number is not None and found == number
    return found == value.text


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number and no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _metadata_term(term: Term) -> str:
    """Return the metadata term of `metadata:key=value`.

    Raises:
        FilterInvalid: the term is negated, has several values, or is not an equation.
    """
    if term.is_negated or term.operator != "=" or len(term.values) > 1:
        raise FilterInvalid(term.place, term.text, "metadata:key=value")
    text = f"{term.name}={term.values[0].text}"
    try:
        return parse_term(text)
    except ValueError as error:
        raise FilterInvalid(term.place, term.text, f"metadata:key=value; {error}") from None


def _original_id(term: Term) -> int:
    """Return the id of the original of `forked-from:9`.

    Raises:
        FilterInvalid: the term is negated, has several values, or is not an equation with an id.
    """
    value = term.values[0]
    if term.is_negated or term.operator != "=" or len(term.values) > 1:
        raise FilterInvalid(term.place, term.text, f"{FORKED_FROM}:9, with a single id")
    if not _ID.fullmatch(value.text):
        raise FilterInvalid(value.place, value.text, f"an experiment's id, as in {FORKED_FROM}:9")
    return int(value.text)
