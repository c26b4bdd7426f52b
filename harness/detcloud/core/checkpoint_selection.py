"""The choice of a checkpoint's files by the ranks of a node, which share one copy of them."""

from __future__ import annotations

from collections.abc import Callable

from detcloud.core.checkpoint_writer import Selector
from detcloud.core.distributed_context import DistributedContext
from detcloud.shared.errors import DetcloudError

HAS_SELECTOR, NAMES = "has_selector", "names"


def common_selector(
    ranks: DistributedContext, selector: Selector | None, list_names: Callable[[], list[str]]
) -> Selector | None:
    """The selector of the files that one of the node's ranks wants, on the first of them; None
    where each wants all. The others answer through a SelectionAnswer.

    Raises DetcloudError where the selector of another rank fails.
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
    """The answers of another rank to what `common_selector` asks; `error` is its selector's."""

    def __init__(self, ranks: DistributedContext, selector: Selector | None) -> None:
        self._ranks, self._selector = ranks, selector
        self.error: Exception | None = None

    def answer(self, kind: str, names: list[str]) -> None:
        """Answer one question of the first rank."""
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
