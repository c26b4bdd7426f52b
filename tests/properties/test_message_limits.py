"""No message is too large for a commit.

The largest message of each type is folded, alone and with others, and so are all resulting
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.step import CommandRefused
from control_plane.engine.actor_types import ACTOR_TYPES, encode_message_for
from control_plane.engine.engine import Engine
from control_plane.engine.mailbox import UNKNOWN, mail_key, mail_write, next_clock
from control_plane.state.memory import MemoryTable
from control_plane.state.table import InvalidCommit, check_limits
from tests.properties.largest_messages import (
    COMMANDS,
    LARGEST,
    NOW_MS,
    MailboxTable,
    fill_table,
    large_experiment,
    new_engine,
)

CASES = [
    pytest.param(actor, message, id=f"{actor}-{message.__name__}")
    for actor, messages in LARGEST.items()
    for message in messages
]
FEW = settings(deadline=None, derandomize=True, max_examples=40)


@cache
def _full_table() -> MemoryTable:
    return fill_table()


def _mail(engine: Engine, address: str, messages: Sequence[object], count: int = 1) -> None:
    """Send the messages as `count` rows of a sender, and advance all actors."""
    encoded = [encode_message_for(address, message) for message in messages]
    for tick in range(count):
        clock = next_clock(0, NOW_MS) + tick
        key = mail_key(address, clock, "sender")
        engine.table.commit((mail_write(key, "sender", UNKNOWN, clock, encoded, NOW_MS),))
    engine.advance_until_idle((address,))


def _check_all_folded(table: MailboxTable) -> None:
    assert not table.waiting
    assert not table.letters


@pytest.mark.parametrize("actor", ACTOR_TYPES)
def test_every_message_type_has_a_largest_message(actor: str) -> None:
    """A new type needs an entry in `largest_messages.py`."""
    assert set(LARGEST[actor]) == set(get_args(ACTOR_TYPES[actor].message_union))


@pytest.mark.parametrize(("actor", "message_type"), CASES)
def test_largest_message_of_each_type_is_folded_with_all_effects(
    actor: str, message_type: type
) -> None:
    table = MailboxTable(_full_table().snapshot())
    engine = new_engine(table)
    largest = LARGEST[actor][message_type]
    message = largest.build()
    assert type(message) is message_type
    if message_type not in COMMANDS:
        _mail(engine, largest.address, [message])
    else:
        engine.execute_command(largest.address, message)
        engine.advance_until_idle((largest.address,))
    _check_all_folded(table)


def _batches(actor: str) -> st.SearchStrategy[list[type]]:
    mailed = [message for message in LARGEST[actor] if message not in COMMANDS]
    return st.lists(st.sampled_from(mailed), min_size=2, max_size=30)


@FEW
@given(st.data())
def test_largest_messages_of_any_types_are_folded_from_a_row(data: st.DataObject) -> None:
    actor = data.draw(st.sampled_from(sorted(LARGEST)))
    entries = LARGEST[actor]
    first, *others = data.draw(_batches(actor))
    address = entries[first].address
    messages = [entries[first].build(), *(entries[other].build() for other in others)]
    table = MailboxTable(_full_table().snapshot())
    engine = new_engine(table)
    encoded = [encode_message_for(address, message) for message in messages]
    row = mail_write(mail_key(address, 1, "sender"), "sender", UNKNOWN, 1, encoded, NOW_MS)
    try:
        check_limits((row,))
    except InvalidCommit:
        # A sender of so much data uses several rows.
        messages = messages[:1]
    _mail(engine, address, messages, count=2)
    _check_all_folded(table)


def test_command_beyond_the_row_limit_is_refused_with_the_limit() -> None:
    engine = new_engine(_full_table().snapshot())
    submitted = replace(large_experiment(9, 12), config="x" * 500_000)
    text = "at most 409600 are allowed in a row"
    with pytest.raises(CommandRefused, match=text) as raised:
        engine.execute_command("experiment#9", submitted)
    assert raised.value.code == "too_large"
