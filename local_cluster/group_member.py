"""A running server as a member of the group of servers with a common state.

The member announces its commits to the other servers, wakes its own waiting calls after the commits
of the others, and holds duties. A server with its state in a file holds all duties.
"""

import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from control_plane.rows.actor_rows import POOL
from control_plane.rows.experiment_rows import SUGGESTION
from control_plane.state.table import Key, TableError
from local_cluster.duty import INSTANCES, TICK, Duty
from local_cluster.embedded_cluster import EmbeddedCluster
from local_cluster.home import HomeFolder

log = logging.getLogger(__name__)


class GroupMember:
    """The member of a group, which replaces the engine's notifications of commits.

    Args:
        home: the data folder of the server.
        embedded: the parts of the server, whose threads were not started.
        name: the name of the server.
        url: the address of the server.

    Attributes:
        name: the name of the server.
        embedded: the parts of the server.
    """

    def __init__(self, home: HomeFolder, embedded: EmbeddedCluster, name: str, url: str) -> None:
        self.name = name
        self.embedded = embedded
        self._long_polls = embedded.adapters.long_polls
        self._suggestions = embedded.suggestion_thread
        self._duties: dict[str, Duty] = {}
        self._link = home.state.link(self)
        if self._link is None:
            return
        holder = home.load_or_create_id()
        for duty in (TICK, INSTANCES):
            self._duties[duty] = Duty(embedded.table, duty, holder, url)
        self._suggestions.is_on_duty = lambda: self._duties[TICK].was_held
        engine = embedded.cluster.engine
        self._on_commit, self._on_row = engine.on_commit, engine.on_row
        engine.on_commit, engine.on_row = self._announce_commit, self._announce_row

    def start(self) -> None:
        """Start the exchange of notices with the group."""
        if self._link is not None:
            self._link.start()

    def stop(self) -> None:
        """End the exchange of notices, and let other servers take the duties over at once."""
        if self._link is not None:
            self._link.stop()
        for duty in self._duties.values():
            with suppress(TableError):
                duty.release()

    def is_ticking(self) -> bool:
        """Take or renew the duty of the periodic maintenance. Return whether the server holds it.

        Raises TableError.
        """
        return TICK not in self._duties or self._duties[TICK].is_held()

    def is_launching(self) -> bool:
        """Take or renew the duty of launching instances. Return whether the server holds it.

        Raises TableError.
        """
        return INSTANCES not in self._duties or self._duties[INSTANCES].is_held()

    def on_names(self, names: Sequence[str]) -> None:
        """Wake the calls that wait for the named actors, and the thread of named rows."""
        for name in names:
            if name == SUGGESTION.partition:
                self._suggestions.wake()
            else:
                self._long_polls.wake_address(name)

    def on_gap(self) -> None:
        """Wake all waiting calls and the thread for suggestions."""
        self._suggestions.wake()
        self._long_polls.wake_all()

    def on_excluded(self) -> None:
        """Stop this process as a user would."""
        os.kill(os.getpid(), signal.SIGTERM)

    def _announce_commit(self, address: str) -> None:
        """Notify all servers of a commit of an actor. No call waits for pools."""
        self._on_commit(address)
        if self._link is not None and not address.startswith(POOL):
            self._link.announce(address)

    def _announce_row(self, key: Key) -> None:
        """Notify this server of a written row, and the group of a suggestion request."""
        self._on_row(key)
        if self._link is not None and key.partition == SUGGESTION.partition:
            self._link.announce(key.partition)
