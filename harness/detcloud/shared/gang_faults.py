"""The search for bad machines and bad links of a gang, by halves. Pure.

A round is a list of disjoint groups of nodes. The nodes of a group communicate, and the group
passes or fails. With a single bad node or a single bad link, the search ends after at most
ceil(log2(nodes)) + 3 rounds, the first round with all nodes included.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

Group = tuple[int, ...]
Link = tuple[int, int]


@dataclass(frozen=True)
class _Block:
    """Nodes that failed together."""

    nodes: Group


@dataclass(frozen=True)
class _Crossing:
    """A bad link connects the two sides of a pair.

    The nodes of a side pass among themselves. No node is in two pairs.
    """

    pairs: tuple[tuple[Group, Group], ...]


@dataclass(frozen=True)
class _Suspects:
    """Two nodes that fail together. Each may be bad, or only the link between the nodes."""

    link: Link
    compared: tuple[tuple[int, int, bool], ...] = ()
    """The comparisons: the suspect, the compared node, and whether the two nodes passed."""


_Problem = _Block | _Crossing | _Suspects


@dataclass(frozen=True)
class FaultSearch:
    """The state of the search. `groups` are the groups of the next round, empty at the end."""

    nodes: int
    """The number of nodes."""
    groups: tuple[Group, ...]
    """The disjoint groups of the next round."""
    bad_nodes: tuple[int, ...] = ()
    """The nodes that fail with different good nodes."""
    bad_links: tuple[Link, ...] = ()
    """The pairs of nodes that fail together, while no node of the pair is known as bad."""
    rounds: int = 0
    """The number of rounds with a result."""
    proven: frozenset[int] = frozenset()
    """The nodes of all groups that have passed."""
    problems: tuple[_Problem, ...] = ()

    @property
    def has_passed(self) -> bool:
        """Whether any group of nodes has passed, which shows that the machines allow the check."""
        return bool(self.proven)

    @property
    def is_over(self) -> bool:
        """Whether no further round is needed."""
        return not self.groups


def begin_search(nodes: int) -> FaultSearch:
    """Return a new search. The first round has a single group with all nodes."""
    return FaultSearch(nodes, (tuple(range(nodes)),))


def rounds_max(nodes: int) -> int:
    """Return the most rounds of a search with a single bad node or link."""
    return (nodes - 1).bit_length() + 3


def record_round(search: FaultSearch, passed: Collection[Group]) -> FaultSearch:
    """Return the search after a round, with the groups of the next round.

    A search with several faults also ends: rounds beyond `rounds_max` and a margin are not begun,
    and the open problems then name no nodes.

    Args:
        passed: the groups of the round that passed.
    """
    outcomes = {group: group in passed for group in search.groups}
    if not search.rounds:
        failed = [group for group, is_good in outcomes.items() if not is_good]
        problems: tuple[_Problem, ...] = tuple(map(_block_problem, failed))
    else:
        problems = tuple(
            after for problem in search.problems for after in _narrow(problem, outcomes)
        )
    search = replace(
        search,
        rounds=search.rounds + 1,
        proven=search.proven.union(*(group for group, is_good in outcomes.items() if is_good)),
        problems=problems,
    )
    search = _decide(search)
    if search.rounds >= rounds_max(search.nodes) + 2:
        return replace(search, groups=(), problems=())
    return replace(search, groups=_next_groups(search))


def _block_problem(nodes: Group) -> _Problem:
    return _Suspects((nodes[0], nodes[1])) if len(nodes) == 2 else _Block(nodes)


def _halves(nodes: Group) -> tuple[Group, Group]:
    middle = (len(nodes) + 1) // 2
    return nodes[:middle], nodes[middle:]


def _narrow(problem: _Problem, outcomes: Mapping[Group, bool]) -> list[_Problem]:
    """Return the smaller problems after a round."""
    match problem:
        case _Block(nodes):
            first, second = _halves(nodes)
            failed = [half for half in (first, second) if outcomes.get(half) is False]
            return [*map(_block_problem, failed)] or [_crossing(((first, second),))]
        case _Crossing(pairs):
            return _narrow_crossing(pairs, outcomes)
        case _Suspects(link, compared):
            more = [
                (group[0], group[1], passed)
                for group, passed in outcomes.items()
                if group[0] in link and group[1] not in link
            ]
            return [_Suspects(link, (*compared, *more))]


def _narrow_crossing(
    pairs: tuple[tuple[Group, Group], ...], outcomes: Mapping[Group, bool]
) -> list[_Problem]:
    failed: list[_Problem] = []
    left: list[tuple[Group, Group]] = []
    for first, second in pairs:
        quarters = [*zip(_halves(first), _halves(second), strict=True)]
        tested = [(one, other) for one, other in quarters if one and other]
        bad = [(one, other) for one, other in tested if not outcomes.get((*one, *other), True)]
        failed += [_crossing((pair,)) for pair in bad]
        (one, first_rest), (other, second_rest) = _halves(first), _halves(second)
        left += [(a, b) for a, b in ((one, second_rest), (first_rest, other)) if a and b]
    if failed:
        return failed
    return [_crossing(tuple(left))] if left else []


def _crossing(pairs: tuple[tuple[Group, Group], ...]) -> _Problem:
    """Return the problem of a crossing link. A single possible link is known."""
    (first, second), *others = pairs
    if not others and len(first) == len(second) == 1:
        return _Suspects((first[0], second[0]))
    return _Crossing(pairs)


def _decide(search: FaultSearch) -> FaultSearch:
    """Move the problems with a known cause to `bad_nodes` and `bad_links`.

    Two suspects are decided when both were compared with other nodes, or no other node is left. A
    suspect is bad if the comparison failed with a node that has passed elsewhere.
    """
    problems: list[_Problem] = []
    bad_nodes, bad_links = {*search.bad_nodes}, {*search.bad_links}
    helpers = _good_nodes(search)
    for problem in search.problems:
        if not isinstance(problem, _Suspects) or (helpers and len(problem.compared) < 2):
            problems.append(problem)
            continue
        failed = {
            node
            for node, other, passed in problem.compared
            if not passed and other in search.proven
        }
        bad_nodes |= failed
        if not failed:
            bad_links.add(problem.link)
    return replace(
        search,
        problems=tuple(problems),
        bad_nodes=tuple(sorted(bad_nodes)),
        bad_links=tuple(sorted(bad_links)),
    )


def _good_nodes(search: FaultSearch) -> list[int]:
    """Return the nodes outside of all problems and faults. Nodes that have passed come last."""
    suspected = {
        *search.bad_nodes,
        *(node for link in search.bad_links for node in link),
        *(node for problem in search.problems for node in _nodes_of(problem)),
    }
    others = [node for node in range(search.nodes) if node not in suspected]
    return sorted(others, key=lambda node: node in search.proven)


def _nodes_of(problem: _Problem) -> Sequence[int]:
    match problem:
        case _Block(nodes):
            return nodes
        case _Crossing(pairs):
            return [node for pair in pairs for side in pair for node in side]
        case _Suspects(link):
            return link


def _next_groups(search: FaultSearch) -> tuple[Group, ...]:
    """Return the groups of the next round. Suspects wait if too few good nodes are left."""
    groups: list[Group] = []
    helpers = _good_nodes(search)
    for problem in search.problems:
        match problem:
            case _Block(nodes):
                groups += [half for half in _halves(nodes) if len(half) > 1]
            case _Crossing(pairs):
                for first, second in pairs:
                    quarters = zip(_halves(first), _halves(second), strict=True)
                    groups += [(*one, *other) for one, other in quarters if one and other]
            case _Suspects(link, compared):
                known = {node for node, _, _ in compared}
                for node in link:
                    if node not in known and helpers:
                        groups.append((node, helpers.pop()))
    return tuple(groups)
