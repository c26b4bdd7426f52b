"""The common selection of a checkpoint's files by the ranks of a node, which share a copy."""

from __future__ import annotations

from collections.abc import Callable

from detcloud.core.checkpoint_writer import Selector
from detcloud.core.distributed_context import DistributedContext
from detcloud.shared.errors import DetcloudError

HAS_SELECTOR, NAMES = "has_selector", "names"


def common_selector(
    ranks: DistributedContext, selector: Selector | None, list_names: Callable[[], list[str]]
) -> Selector | None:
    """Return a selector of the files that at least one rank of this node wants.

    Return None if no rank has a selector, which means all files. Call this on the node's first
    rank; the other ranks must answer with a SelectionAnswer. `list_names` returns the names of all
    files and is called only if a rank has a selector.

    Raises DetcloudError if the selector of another rank fails or another rank of the node has
    exited. Exceptions of the own selector and of `list_names` are raised unchanged.
    """
    ranks.broadcast_local((HAS_SELECTOR, None))
    if not any(ranks.gather_local(selector is not None) or ()):
        return None
    names = list_names()
    own = [name for name in names if selector is None or selector(name)]
    ranks.broadcast_local((NAMES, names))
    answers = ranks.gather_local((own, "")) or []
    failures = [failure for _, failure in answers if failure]
    if failures:
        raise DetcloudError(f"a selector failed: {'; '.join(failures)}")
    wanted = {name for chosen, _ in answers for name in chosen}
    return wanted.__contains__


class SelectionAnswer:
    """The answers of another rank of the node to the questions of `common_selector`.

    `error` is the exception of this rank's selector, or None.
    """

    def __init__(self, ranks: DistributedContext, selector: Selector | None) -> None:
        """Create the answers of this rank. A `selector` of None accepts all files."""
        self._ranks, self._selector = ranks, selector
        self.error: Exception | None = None

    def answer(self, kind: str, names: list[str]) -> None:
        """Answer a question of the node's first rank.

        For the kind HAS_SELECTOR, send whether this rank has a selector. For NAMES, send the names
        that the selector accepts, or the text of the selector's exception, which is kept in
        `error`. Raises DetcloudError if the first rank has exited.
        """
        selector = self._selector
        if kind == HAS_SELECTOR:
            self._ranks.gather_local(selector is not None)
            return
        chosen, failure = names, ""
        try:
            chosen = [name for name in names if selector is None or selector(name)]
        except Exception as error:
            self.error, failure = error, f"rank {self._ranks.rank}: {error!r}"
        self._ranks.gather_local((chosen, failure))
