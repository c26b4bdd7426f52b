"""An automaton that decides whether a line matches a pattern, in time linear in the line.

The deterministic automaton is built on demand: a state learns the next state of a character when
the character first occurs. A state is a dict, so that the loop over a line runs in the interpreter
itself. The memory is bounded, since the states are dropped when too many are known.
"""

from __future__ import annotations

import sys
from functools import reduce
from operator import getitem
from typing import Final, NamedTuple

from detcloud.shared.line_patterns.character_sets import WORDS, Ranges, has_character
from detcloud.shared.line_patterns.required_texts import required_texts, required_window
from detcloud.shared.line_patterns.syntax import (
    Characters,
    Choice,
    Node,
    PatternInvalid,
    Position,
    Repeat,
    Sequence,
    parse_pattern,
)

INSTRUCTIONS_MAX: Final = 2_000
"""The most instructions of a pattern. A repetition counts as often as it repeats."""
KNOWN_MAX: Final = 20_000
"""The most transitions that an automaton remembers."""


class _Step(NamedTuple):
    """An instruction: a character to read, a condition, or a jump to other instructions."""

    ranges: Ranges | None = None
    """The characters that lead to `targets`. None: no character is read."""
    position: Position | None = None
    """The condition under which the instruction leads to `targets`. None: no condition."""
    targets: tuple[int, ...] = ()
    """The numbers of the next instructions. Empty for the end of the pattern."""


class _CharacterKind:
    """The kinds of characters, by which conditions on positions are decided."""

    NOTHING = 0
    OTHER = 1
    WORD = 2


class PatternSlow(Exception):
    """A pattern has used up `work_max`, because the automaton has too many states."""


class LinePattern:
    """A pattern that lines are compared with. An instance must not be shared by threads.

    Args:
        pattern: the regular expression in RE2's syntax. Raises PatternInvalid if invalid or too
            large.
        work_max: the number of instructions that may be followed to build the automaton.
    """

    def __init__(self, pattern: str, work_max: int = sys.maxsize) -> None:
        node = parse_pattern(pattern)
        self.required_texts = required_texts(node)
        """ASCII texts in lower case. Every matching line contains at least a single text. May be
        empty.
        """
        self.required_window = required_window(node)
        """An expression of `re` over bytes that every matching line contains, or ""."""
        self._steps = _compile(node)
        self._has_positions = any(step.position for step in self._steps)
        self._states: dict[tuple[frozenset[int], int], _State] = {}
        self._known = 0
        self._work_left = work_max

    def matches(self, line: str) -> bool:
        """Return whether a part of the line matches.

        The time is linear in the line. Raise PatternSlow if the automaton has become too expensive.
        """
        if self._known > KNOWN_MAX:
            self._states, self._known = {}, 0
        state: _State = self._state_of(frozenset(), _CharacterKind.NOTHING)
        return reduce(getitem, line, state).is_match_at_end

    def next_state(self, waiting: frozenset[int], before: int, character: str) -> _State:
        """Return the state after a character.

        Args:
            waiting: the instructions reached before the character.
            before: the kind of the character before, as in `_CharacterKind`.
        """
        code = ord(character)
        kind = _CharacterKind.WORD if has_character(WORDS, code) else _CharacterKind.OTHER
        reached, is_match = self._reach(waiting, before, kind)
        self._known += 1
        self._work_left -= len(reached) + 1
        if self._work_left < 0:
            raise PatternSlow
        if is_match:
            return _MATCHED
        after = frozenset(
            target
            for number in reached
            if (ranges := self._steps[number].ranges) is not None and has_character(ranges, code)
            for target in self._steps[number].targets
        )
        return self._state_of(after, kind if self._has_positions else _CharacterKind.OTHER)

    def ends_in_match(self, waiting: frozenset[int], before: int) -> bool:
        """Return whether a line matches that ends at this place."""
        return self._reach(waiting, before, None)[1]

    def _state_of(self, waiting: frozenset[int], before: int) -> _State:
        key = (waiting, before)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State(self, waiting, before)
        return state

    def _reach(
        self, waiting: frozenset[int], before: int, after: int | None
    ) -> tuple[set[int], bool]:
        """Return the instructions that read a character here, and whether the pattern has matched.

        A match may begin at every place, so the first instruction always counts.

        Args:
            after: the kind of the next character, None at the end of the line.
        """
        reached: set[int] = set()
        readers: set[int] = set()
        is_match = False
        pending = [*waiting, len(self._steps) - 1]
        while pending:
            number = pending.pop()
            if number in reached:
                continue
            reached.add(number)
            step = self._steps[number]
            if step.ranges is not None:
                readers.add(number)
            elif not step.targets:
                is_match = True
            elif step.position is None or _is_met(step.position, before, after):
                pending += step.targets
        return readers, is_match


class _State(dict[str, "_State"]):
    """A state, which maps each known character to the next state."""

    __slots__ = ("_before", "_is_match", "_pattern", "_waiting")

    def __init__(self, pattern: LinePattern, waiting: frozenset[int], before: int) -> None:
        self._pattern = pattern
        self._waiting = waiting
        self._before = before
        self._is_match: bool | None = None

    def __missing__(self, character: str) -> _State:
        state = self[character] = self._pattern.next_state(self._waiting, self._before, character)
        return state

    @property
    def is_match_at_end(self) -> bool:
        """Whether a line that ends in this state matches."""
        if self._is_match is None:
            self._is_match = self._pattern.ends_in_match(self._waiting, self._before)
        return self._is_match


class _MatchState(_State):
    """The state of a line that has matched. Further characters do not matter."""

    def __init__(self) -> None:
        self._is_match = True

    def __missing__(self, character: str) -> _State:
        return self


_MATCHED: Final = _MatchState()


def _compile(node: Node) -> tuple[_Step, ...]:
    """Return the instructions of a pattern. The last instruction is the beginning."""
    steps = [_Step()]
    first = _add(node, 0, steps)
    steps.append(_Step(targets=(first,)))
    return tuple(steps)


def _add(node: Node, following: int, steps: list[_Step]) -> int:
    """Append the instructions of a node, and return the number of the first instruction.

    Args:
        following: the number of the instruction after the node.

    Raises:
        PatternInvalid: the pattern has more than INSTRUCTIONS_MAX instructions.
    """
    match node:
        case Characters(ranges):
            return _append(_Step(ranges=ranges, targets=(following,)), steps)
        case Position():
            return _append(_Step(position=node, targets=(following,)), steps)
        case Sequence(()):
            # An empty part counts as well, so that repetitions of empty parts are limited.
            return _append(_Step(targets=(following,)), steps)
        case Sequence(parts):
            for part in reversed(parts):
                following = _add(part, following, steps)
            return following
        case Choice(parts):
            firsts = tuple(_add(part, following, steps) for part in parts)
            return _append(_Step(targets=firsts), steps)
        case Repeat():
            return _add_repeat(node, following, steps)


def _add_repeat(node: Repeat, following: int, steps: list[_Step]) -> int:
    """Append the instructions of a repetition, and return the number of the first instruction."""
    end = following
    if node.most is None:
        loop = _append(_Step(targets=(following,)), steps)
        body = _add(node.part, loop, steps)
        steps[loop] = _Step(targets=(body, following))
        following = loop
    else:
        for _ in range(node.most - node.least):
            body = _add(node.part, following, steps)
            following = _append(_Step(targets=(body, end)), steps)
    for _ in range(node.least):
        following = _add(node.part, following, steps)
    return following


def _append(step: _Step, steps: list[_Step]) -> int:
    if len(steps) >= INSTRUCTIONS_MAX:
        raise PatternInvalid("is too large: use smaller repetitions")
    steps.append(step)
    return len(steps) - 1


def _is_met(position: Position, before: int, after: int | None) -> bool:
    """Return whether the condition holds between two characters.

    Args:
        before: the kind of the character before.
        after: the kind of the next character, None at the end of the line.
    """
    match position:
        case Position.BEGIN:
            return before == _CharacterKind.NOTHING
        case Position.END:
            return after is None
        case Position.WORD_EDGE:
            return (before == _CharacterKind.WORD) != (after == _CharacterKind.WORD)
        case Position.NO_WORD_EDGE:
            return (before == _CharacterKind.WORD) == (after == _CharacterKind.WORD)
