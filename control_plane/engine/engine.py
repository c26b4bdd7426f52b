"""The engine: the commands of users, posted messages and dead letters.

`Advancer` advances actors, `Committer` commits, and `CommittedActors` reads states and parts. The
engine has the methods of all three.
"""

import itertools
import logging
from collections.abc import Callable, Iterable

from control_plane.actors.step import CommandRefused
from control_plane.engine.actor_types import encode_message_for
from control_plane.engine.advancer import LOAD_TRIES_MAX, Advancer
from control_plane.engine.commits import Commit, Origin, build_commit
from control_plane.engine.delivery import MailOnly
from control_plane.engine.engine_timing import EngineTiming
from control_plane.engine.fold_steps import apply_fallback, apply_message, finish_fold, fold_mail
from control_plane.engine.mailbox import (
    FIRST,
    RECOVERY_DELAY_MS,
    MailboxRow,
    dead_letter_write,
    mail_key,
    mail_write,
    next_clock,
)
from control_plane.engine.reader import FoldReader, LoadedActor, TornRead, load_actor
from control_plane.state.table import (
    OPERATIONS_MAX,
    Conflict,
    InvalidCommit,
    Key,
    StateTable,
    Write,
)

log = logging.getLogger(__name__)

COMMAND_TRIES_MAX = 60
# The time that a command spends on sent messages. The recovery pass handles the rest.
COMMAND_BUDGET_MS = 3_000


class Engine(Advancer):
    """The engine of a state table: advances actors and executes commands. Threads may share an
    engine.

    Args:
        table: the state table, which may be replaced later.
        clock: returns the current time in epoch ms.
        timing: the clock for durations and the pause after a conflict. None uses the system's.
    """

    def __init__(
        self, table: StateTable, clock: Callable[[], int], timing: EngineTiming | None = None
    ) -> None:
        super().__init__(table, clock, timing)
        self._post_numbers = itertools.count(1)

    def execute_command(
        self,
        address: str,
        message: object,
        *,
        by: str = "",
        extra_writes: Callable[[object], tuple[Write, ...]] = lambda reply: (),
    ) -> object:
        """Fold the actor's mail and a user's command in a single commit; return the actor's reply.

        After the commit, advance the actor and the receivers of new mail for at most
        COMMAND_BUDGET_MS. A failure of the table or a damaged head is only logged at this stage.
        Other errors of advancing are raised, although the command is committed. The reply is None
        if the actor gives no reply.

        If another process commits first, pause and try again. If mail and command are too large
        together, fold the mail in commits of its own first.

        Raises:
            CommandRefused: the command is not committed. The actor refuses the command with a code
                of its own, or the code is one of these. `not_found`: the actor does not exist, and
                the command does not create it. `too_large`: the commit would be too large.
                `unavailable`: COMMAND_TRIES_MAX tries failed.
            Conflict: the condition of an extra write does not hold.
            TableError: another failure of the table. After its subclass Unavailable, the command
                may be committed.
            KeyError: the type of actor is unknown, or does not accept messages of this type.
            Exception: another error of the actor's `step` or `finish_fold`, or of `extra_writes`.

        Args:
            by: the user, for the journal.
            extra_writes: returns further writes for the same commit, given the reply. Called once
                for each try.
        """
        origin = Origin((encode_message_for(address, message),), by)
        extra_keys: set[Key] = set()

        def record_extra_writes(reply: object) -> tuple[Write, ...]:
            writes = extra_writes(reply)
            extra_keys.update(write.key for write in writes)
            return writes

        mail_only = MailOnly()
        for _ in range(COMMAND_TRIES_MAX):
            try:
                outcome = self._try_command(
                    address, message, origin, record_extra_writes, mail_only
                )
            except Conflict as conflict:
                if conflict.key in extra_keys:
                    raise
                mail_only.receivers.add(conflict.key.partition)
                self._timing.pause_after_conflict()
                continue
            if outcome is not None:
                return outcome[0]
        raise CommandRefused("unavailable", f"{address} is too busy; try again")

    def post_message(self, address: str, message: object, *, sender: str) -> None:
        """Write a message into an actor's mailbox. Then advance the actor and the receivers of new
        mail, until no mail or no time is left.

        The message is stored even if the actor cannot be advanced now; the recovery pass finds it.
        A missing actor drops every message but the one that creates the actor. Repeating the call
        stores a second message.

        Raises KeyError, before anything is stored, for an unknown type of actor or a message that
        the actor does not accept. A TableError does not show whether the message was stored. Raises
        ValueError or KeyError for a row that cannot be decoded, and the errors of an actor's
        `finish_fold`; the message is stored then.

        Args:
            sender: the name of the part of the cluster that sends the message. The sender is no
                actor.
        """
        self.store_messages((address,), message, sender=sender)
        self.advance_until_idle((address,))

    def store_messages(self, receivers: Iterable[str], message: object, *, sender: str) -> None:
        """Write a message into the mailboxes of many actors. No actor is advanced.

        An event of the cloud or the recovery pass advances the actors within seconds. The messages
        are stored in commits of OPERATIONS_MAX mailboxes, so that an error may leave the last
        mailboxes without the message. Otherwise as `post_message`.

        Args:
            receivers: the addresses of the actors, of a single type.
            sender: the name of the part of the cluster that sends the message.
        """
        now_ms = self.clock()
        clock, due_ms = next_clock(0, now_ms), now_ms + RECOVERY_DELAY_MS
        writes = []
        for address in receivers:
            encoded = [encode_message_for(address, message)]
            key = mail_key(address, clock, f"{sender}#{next(self._post_numbers)}")
            writes.append(mail_write(key, sender, FIRST, clock, encoded, due_ms))
        for start in range(0, len(writes), OPERATIONS_MAX):
            self.table.commit(writes[start : start + OPERATIONS_MAX])

    def dead_letter_mail(self, mail: MailboxRow) -> tuple[str, ...]:
        """Make a dead letter of the first message of a mailbox row that no attempt could fold.

        In one commit, the actor applies its fallback for the message, and the message moves from
        the mailbox to a row of its own (`D#MAIL`). The other messages of the row stay in the
        mailbox. A fallback that fails is logged, and the message is moved all the same.

        Return the addresses of the actors to advance: this actor and the receivers of new mail.

        Raises TornRead or Conflict if another process changes the actor at this time,
        CommandRefused if the actor cannot be loaded after LOAD_TRIES_MAX reads, and other
        TableErrors. The mailbox is unchanged then.
        """
        address = mail.key.partition
        now_ms = self.clock()
        actor = self._load_actor(address)
        reader = FoldReader(self.table, actor)
        fold = reader.fold
        first = mail.first_messages(1)
        for name, fields in first.messages:
            apply_fallback(reader, name, fields, now_ms)
        fold.consume(first)
        commit = build_commit(
            actor.snapshot, fold, now_ms, Origin(is_dead_letter=True), extra_write_count=1
        )
        letter = dead_letter_write(first)
        self._commit_fold(
            Commit((*commit.writes, letter), commit.snapshot, commit.receivers), fold, actor
        )
        return (address, *commit.receivers)

    def _try_command(
        self,
        address: str,
        message: object,
        origin: Origin,
        extra_writes: Callable[[object], tuple[Write, ...]],
        mail_only: MailOnly,
    ) -> tuple[object] | None:
        """Try once to commit the actor's mail and a command. Return None if the caller should try
        again.

        After the commit, advance the actor and the receivers for at most COMMAND_BUDGET_MS, and
        return a tuple with the reply. A failure at this stage is only logged.

        Return None without the command after a torn read, or if the commit would be too large. In
        the latter case, `mail_only` is changed, or the mail is folded in commits of its own.

        Raises Conflict if another process committed first, other TableErrors, and CommandRefused:
        the actor's refusal, `not_found` for a missing actor, or `too_large`.
        """
        now_ms = self.clock()
        try:
            actor = load_actor(self.table, self._cache, address, None)
            reader = FoldReader(self.table, actor)
            fold_mail(reader, actor.mail, now_ms, set())
            has_mail = bool(reader.fold.consumed)
            apply_message(reader, message, now_ms)
            if reader.fold.state is None:
                raise CommandRefused("not_found", f"there is no {address.replace('#', ' ')}")
            finish_fold(reader, now_ms)
        except TornRead:
            return None
        fold = reader.fold
        extra = extra_writes(fold.reply)
        try:
            receivers = self._commit_with_deliveries(actor, fold, now_ms, mail_only, origin, extra)
        except InvalidCommit as refused:
            if not mail_only.everyone:
                mail_only.everyone = True
                return None
            if not has_mail:
                raise CommandRefused(
                    "too_large", f"{address} would be too large: {refused}"
                ) from None
            # The mail and the command do not fit into a commit together: fold the mail first.
            self.advance_until_idle((address,))
            return None
        self.advance_after_commit((address, *receivers), budget_ms=COMMAND_BUDGET_MS)
        return (fold.reply,)

    def _load_actor(self, address: str) -> LoadedActor:
        """Load an actor without timers, repeating torn reads.

        Raises CommandRefused (`unavailable`) after LOAD_TRIES_MAX torn reads. Raises TableError,
        ValueError for an invalid head, and KeyError for an unknown type of actor.
        """
        for _ in range(LOAD_TRIES_MAX):
            try:
                return load_actor(self.table, self._cache, address, None)
            except TornRead:
                continue
        raise CommandRefused("unavailable", f"{address} changes too fast to be read")
