"""The rows of every actor, in the partition of the actor's address."""

from control_plane.rows.row_type import RowType

EXPERIMENT, TRIAL, POOL, AGENT = "experiment#", "trial#", "pool#", "agent#"
"""The starts of the addresses of actors, which are also their partitions."""
ACTOR_PARTITIONS = (EXPERIMENT, TRIAL, POOL, AGENT)

_MAIL_FIELDS = {
    "v": "the version of the format",
    "from": "the address of the sender, or the name of another part of the cluster",
    "prev": "the sort key of the sender's previous row to this receiver, '' for none, '?' unknown",
    "clock": "the sender's hybrid logical clock, in ticks",
    "attempts": "the number of failed attempts to fold the row",
    "messages": "the stored name and the fields of each message",
}

HEAD = RowType(
    name="head",
    # "M" sorts directly before the mail, so that one query reads the head and the mail.
    key="ACTOR / M",
    meaning="The head of an actor: the engine's header, and the state.",
    record="control_plane.engine.head:Header",
    body="the header as a line of JSON, then the state as JSON",
    writers=("engine.commits",),
    readers=(
        "engine.reader",
        "engine.committed_actors",
        "queries.pool_snapshot",
        "queries.experiment_list",
    ),
    is_mutable=True,
)
PART = RowType(
    name="part",
    key="ACTOR / P#NAME",
    meaning="A part of an actor's state, which is read only when needed.",
    body="JSON of the part's type in engine/actor_types.py, or bytes",
    writers=("engine.commits",),
    readers=(
        "engine.reader",
        "engine.committed_actors",
        "engine.replayed_head",
        "checkpoint_gc.checkpoint_inventory",
    ),
    is_mutable=True,
)
OUTBOX = RowType(
    name="spilled outbox",
    key="ACTOR / P#outbox/NUMBER",
    meaning="Messages that were too many for the commit of a fold. Later commits send them.",
    body="compressed JSON",
    writers=("engine.commits",),
    readers=("engine.committer",),
    due="at once, and each time that a pass finds the row",
)
MAIL = RowType(
    name="mail",
    key="ACTOR / M#CLOCK#SENDER",
    meaning="The messages of a commit to an actor, until the actor folds the messages.",
    fields=_MAIL_FIELDS,
    writers=("engine.commits", "engine.engine", "agents.sessions", "agents.leases"),
    readers=("engine.reader", "engine.due_index", "engine.redrive"),
    due="5 s after the commit, and 2^attempts s after each attempt",
    wakes=("advance",),
)
TIMER = RowType(
    name="timer",
    key="ACTOR / T#DUE#CLOCK",
    meaning="A message that an actor sends to itself at a later time.",
    fields=_MAIL_FIELDS,
    writers=("engine.commits", "engine.due_index"),
    readers=("engine.reader", "engine.due_index"),
    due="at the time in the key, or an hour after the row was written",
)
DEAD_LETTER = RowType(
    name="dead letter",
    key="ACTOR / D#MAIL",
    meaning="A message that an actor failed to fold five times, for operators.",
    fields=_MAIL_FIELDS,
    writers=("engine.engine",),
    readers=(),
    is_passing=True,
)
JOURNAL = RowType(
    name="journal entry",
    key="ACTOR / Z#REVISION",
    meaning="The record of a commit: everything that is needed to fold the commit again.",
    fields={
        "v": "the version of the format; missing in rows of format 1",
        "now": "the time of the commit, in epoch ms",
        "f": "the number of fields of the state in the version that wrote the entry",
        "in": "the mailbox rows that the commit folded, in order",
        "command": "the stored name and the fields of a user's command, or empty",
        "out": "the digest of each changed output, by name",
        "read": "the revision and the body of each row that the steps read, by `partition/sort`",
        "why": "the reasons of the steps, each with the number of the step from 0",
        "by": "the user who gave the command",
        "dead": "whether the mail is a dead letter",
        "spilled": "whether the actor has a spilled outbox after the commit",
    },
    body="JSON, compressed from 8 KiB on, with a leading zero byte",
    writers=("engine.commits",),
    readers=("engine.replay", "engine.journal_values"),
    expiry="30 days after the commit for pools and agents; with the experiment for others",
)
DROPPED_MAIL = RowType(
    name="dropped mail",
    key="ACTOR / Z#dropped#MAIL",
    meaning="Mail to an actor that does not exist.",
    fields={"now": "the time of the commit, in epoch ms", "dropped": "the mail"},
    writers=("engine.commits",),
    readers=(),
)

ROW_TYPES = (HEAD, PART, OUTBOX, MAIL, TIMER, DEAD_LETTER, JOURNAL, DROPPED_MAIL)
