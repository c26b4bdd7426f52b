"""Advancing actors: folding mail and due timers, committing, and following the new mail.

Several processes may advance an actor at the same time; the first commit wins. The loser stops: its
mail was stored before the winner's commit, and the winner reads the mailbox again after the commit.
The recovery pass finds mail that no process has folded (due_rows.py).
"""

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable

from control_plane.engine.committer import Committer
from control_plane.engine.delivery import MailOnly
from control_plane.engine.engine_timing import EngineTiming
from control_plane.engine.fold import Fold
from control_plane.engine.fold_steps import finish_fold, fold_mail
from control_plane.engine.reader import FoldReader, TornRead, load_actor
from control_plane.state.table import Conflict, InvalidCommit, Key, StateTable, TableError

log = logging.getLogger(__name__)

LOAD_TRIES_MAX = 20
BUDGET_MS = 10_000


class Advancer(Committer):
    """Advances actors on a state table. Threads may share an advancer.

    To advance an actor is to fold its messages: apply them to the state in order, and commit the
    result. A committed fold removes the messages from the mailbox.

    Args:
        clock: returns the current time in epoch ms.
        timing: the clock for durations and the pause after a conflict. None uses the system's.
    """

    def __init__(
        self, table: StateTable, clock: Callable[[], int], timing: EngineTiming | None = None
    ) -> None:
        super().__init__(table)
        self.clock = clock
        self._timing = timing or EngineTiming()

    def advance_until_idle(self, addresses: Iterable[str], *, budget_ms: int = BUDGET_MS) -> None:
        """Advance actors, then the receivers of new mail, until no mail or no time is left.

        A commit that was started in time is completed. Timers are not folded. Mail that cannot be
        folded is logged and left for the recovery pass.

        Raises TableError if the table fails, and the errors of an actor's `finish_fold`. Raises
        ValueError or KeyError for an unknown type of actor, a row that cannot be decoded, or a
        value that cannot be encoded. After an error the remaining actors are not advanced, and
        earlier commits remain.

        Args:
            addresses: the actors to begin with. Duplicates are advanced once.
            budget_ms: the time limit. Without time, nothing is advanced.
        """
        pending = deque(dict.fromkeys(addresses))
        seconds = self.seconds
        until = seconds() + budget_ms / 1000
        while pending and (left_seconds := until - seconds()) > 0:
            for receiver in self.advance(pending.popleft(), budget_ms=left_seconds * 1000):
                if receiver not in pending:
                    pending.append(receiver)

    def advance_after_commit(self, addresses: Iterable[str], *, budget_ms: int = BUDGET_MS) -> None:
        """Advance actors and the receivers of new mail after the caller's own commit has succeeded.

        Stop when no mail or no time (`budget_ms`) is left. A TableError, a ValueError for a damaged
        head and a KeyError for an unknown type of actor are only logged, because the caller must
        not report a failure. The recovery pass advances the remaining actors. Raises other errors
        of an actor's `finish_fold`.
        """
        receivers = tuple(addresses)
        try:
            self.advance_until_idle(receivers, budget_ms=budget_ms)
        except (TableError, ValueError, KeyError) as error:
            log.warning("left to a later pass: the mail of %s: %s", ", ".join(receivers), error)

    def advance(
        self, address: str, *, timers: bool = False, budget_ms: float = BUDGET_MS
    ) -> tuple[str, ...]:
        """Fold the actor's mail, and with `timers` also due timers, in as many commits as needed.

        A spilled outbox, which has the messages of a commit that was full, is mailed first. Stop
        without an error if nothing is left, if no time is left, or if another process advances the
        actor. Mail that cannot be folded is logged and left for the recovery pass. Mail to a
        missing actor is dropped and recorded in the journal.

        Return the addresses of the actors that received mail. Return () if no actor received mail,
        also if nothing was committed.

        Raises TableError if the table fails, or if a spilled message is too large to be mailed.
        Raises the errors of the actor's `finish_fold`. Raises ValueError or KeyError for an unknown
        type of actor, a head or spilled message that cannot be decoded, or a value that cannot be
        encoded. Earlier commits remain.

        Args:
            budget_ms: the time limit. A commit that was started in time is completed.
        """
        receivers: dict[str, None] = {}
        skipped: set[str] = set()
        seconds = self.seconds
        until = seconds() + budget_ms / 1000
        while seconds() < until:
            written_to = self._advance_once(address, timers, skipped)
            if written_to is None:
                break
            receivers.update(dict.fromkeys(written_to))
            if not timers and self._is_idle(address):
                break
        return tuple(receivers)

    def seconds(self) -> float:
        """Return the time of the engine's monotonic clock in seconds, for measuring durations."""
        return self._timing.monotonic_seconds()

    def _is_idle(self, address: str) -> bool:
        """Return whether the actor has neither mail nor a spilled outbox (stored messages that a
        full commit did not mail). Return False for an actor that is not cached.

        Timers do not count. Reads at most one row. Raises TableError.
        """
        latest = self._cache.get_latest(address)
        may_spill = latest is None or latest.header.spill is not None
        return not may_spill and not self.has_mail(address)

    def _advance_once(
        self, address: str, timers: bool, skipped: set[str]
    ) -> tuple[str, ...] | None:
        """Make a commit for the actor and return the addresses of the receivers of new mail.

        The commit mails entries of a spilled outbox (stored messages of a full commit), or folds
        mail and due timers. Return None without a commit if nothing can be folded, if another
        process advances the actor, or after LOAD_TRIES_MAX tries.

        If a receiver of a delivery changes, its messages are mailed instead. If the commit is too
        large, all messages are mailed, then fewer messages are folded. A single message that is too
        large is logged and skipped.

        Raises TableError if the table fails or a spilled message is too large. Raises ValueError or
        KeyError for an unknown type of actor, a row that cannot be decoded, or a value that cannot
        be encoded. Raises the errors of the actor's `finish_fold`. Nothing is committed after an
        error, except that the outcome is unknown after Unavailable.

        Args:
            timers: whether due timers are folded as well.
            skipped: the sort keys of rows that cannot be folded. Further such rows are added.
        """
        messages_max = sys.maxsize
        mail_only = MailOnly()
        for _ in range(LOAD_TRIES_MAX):
            now_ms = self.clock()
            try:
                actor = load_actor(self.table, self._cache, address, now_ms if timers else None)
                if actor.snapshot.header.spill is not None:
                    return self._drain_outbox(actor, now_ms)
                reader = FoldReader(self.table, actor)
                fold_mail(reader, actor.mail, now_ms, skipped, messages_max)
                fold = reader.fold
                if not fold.consumed:
                    return None
                finish_fold(reader, now_ms)
                return self._commit_with_deliveries(actor, fold, now_ms, mail_only)
            except TornRead:
                continue
            except InvalidCommit as refused:
                if actor.snapshot.header.spill is not None:
                    # No smaller commit can mail the spilled outbox.
                    raise
                if mail_only.everyone:
                    # The effects of a few messages may be too large for a commit.
                    messages_max = _halve_messages(address, fold, skipped, refused)
                mail_only.everyone = True
            except Conflict as conflict:
                if _is_actor_row(conflict.key, address):
                    return None
                mail_only.receivers.add(conflict.key.partition)
        return None


def _halve_messages(address: str, fold: Fold, skipped: set[str], refused: InvalidCommit) -> int:
    """Return how many messages to fold after a commit of `fold` was too large: half as many.

    A single message cannot be halved. Log the error, add the key of its row to `skipped`, and
    return `sys.maxsize`.
    """
    messages_max = fold.message_count() // 2
    if messages_max:
        return messages_max
    log.error("%s cannot fold %s: %s", address, fold.consumed[0].key.sort, refused)
    skipped.add(fold.consumed[0].key.sort)
    return sys.maxsize


def _is_actor_row(key: Key, address: str) -> bool:
    """Return whether the key belongs to a row of the actor.

    A conflict on such a row means that another process has advanced the actor.
    """
    return key.partition == address
