"""The calls of users that a host executes once, however often the user repeats the call."""

from collections.abc import Callable
from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.identifiers import COUNTERS
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.step import CommandRefused
from control_plane.rows.user_rows import IDEMPOTENCY_KEY
from control_plane.state.table import Conflict, Expect, Key, Put, Write
from simulator.hosts.hosts import Host

COUNTER = Key(COUNTERS, "experiment")


def submit_once(host: Host, message: ExperimentSubmitted, key: Key) -> int:
    """Create an experiment with the next free id, as usecases/submission.py does; return the id.

    If a call with this idempotency key has succeeded before or succeeds meanwhile, return the id
    of that call's experiment. The commit also increases the counter of ids and stores the key.
    Raises CommandRefused if the command is refused, and TableError.
    """
    known = host.engine.table.get(key)
    if known is not None:
        return int(known.body)
    while True:
        row = host.engine.table.get(COUNTER)
        number, revision = int(row.body) if row else 1, row.revision if row else 0
        counter = Put(COUNTER, revision + 1, b"%d" % (number + 1), revision or Expect.ABSENT)
        extra = (counter, Put(key, 1, b"%d" % number, Expect.ABSENT))
        try:
            host.engine.execute_command(
                addresses.experiment(number),
                replace(message, experiment_id=number),
                by="user",
                extra_writes=_constant_writes(extra),
            )
            return number
        except Conflict:
            known = host.engine.table.get(key)
            if known is not None:
                return int(known.body)


def command_once(host: Host, address: str, message: object, key: Key) -> int:
    """Execute a command once, as control_plane.usecases.idempotency does, and return 0.

    Do nothing if a call with this idempotency key has succeeded before, and ignore a refusal or
    conflict if another call with the key succeeds meanwhile. Raises CommandRefused if the command
    is refused, and TableError.
    """
    if host.engine.table.get(key) is not None:
        return 0
    extra = (Put(key, 1, b"", Expect.ABSENT),)
    try:
        host.engine.execute_command(
            address, message, by="user", extra_writes=_constant_writes(extra)
        )
    except (Conflict, CommandRefused):
        if host.engine.table.get(key) is None:
            raise
    return 0


def _constant_writes(writes: tuple[Write, ...]) -> Callable[[object], tuple[Write, ...]]:
    return lambda reply: writes


def idempotency_key(name: str) -> Key:
    """Return the key of the row for an idempotency key of the simulated user."""
    return Key(IDEMPOTENCY_KEY.partition_of("user"), IDEMPOTENCY_KEY.sort + name)
