"""The position of a torch loader within an epoch, for loops that a framework runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from detcloud.pytorch import generators


class LoaderProgress:
    """Follows the epochs of a loader, so that another process can resume within an epoch.

    The class of `loader` is replaced by a subclass, in which an epoch's order is drawn when the
    first batch is taken. The generators' state at that moment is kept. To resume, the state is
    restored, and trained batches are loaded and skipped.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Replace the class of `loader`, so that the next iteration is followed."""
        self.loader = loader
        # States of the generators: at the epoch's start, and before the latest batch was loaded.
        self._begun: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None
        self._resumed: dict[str, Any] | None = None
        kind: Any = type(loader)

        def batches(one: Any) -> Iterator[Any]:
            return self._batches(lambda: kind.__iter__(one))

        follower: Any = type(kind.__name__, (kind,), {"__iter__": batches})
        loader.__class__ = follower

    def state_dict(self, batches: int) -> dict[str, Any]:
        """Return the state after `batches` batches of the epoch, including random generators."""
        states = {"begun": self._begun, "before": self._before, "now": self._capture()}
        return {"batches": batches, **states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`, and set all random generators of this process now.

        The generators of the loader and the samplers are set too. If the state has trained batches,
        the next iteration of the loader repeats the epoch's order, loads and skips these batches,
        and continues after them. Otherwise, the next iteration begins a new epoch.
        """
        if state["batches"] and state["begun"] is not None:
            self._resumed = state
        self._restore(state["now"])

    def _batches(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Yield the batches of an epoch, and keep the generators' state at the epoch's start.

        The generators are those of the loader, the samplers and this process. `begin` starts the
        loader's own iteration.

        After `load_state_dict`, set the generators to the start of the interrupted epoch, then load
        and skip its trained batches. Then set the generators to their saved state, and yield the
        rest.
        """
        state, self._resumed = self._resumed, None
        if state is not None:
            self._restore(state["begun"])
        self._begun = self._capture()
        batches = begin()
        if state is not None:
            for _ in islice(batches, state["batches"]):
                pass
        if isinstance(self.loader.dataset, Sized):
            if state is not None:
                self._restore(state["now"])
            yield from batches
        else:
            yield from self._stream(batches, state)

    def _stream(self, batches: Iterator[Any], state: dict[str, Any] | None) -> Iterator[Any]:
        """Yield the batches of a loader without a length, which loops read one batch ahead.

        The state before the latest batch is kept, because that batch is loaded before the previous
        one is trained.
        """
        if state is not None:
            self._restore(state["before"])
        while True:
            self._before = self._capture()
            for batch in islice(batches, 1):
                if state is not None:
                    self._restore(state["now"])
                    state = None
                yield batch
                break
            else:
                return

    def _capture(self) -> dict[str, Any]:
        """Return the states of the loader's generators and of the process's generators."""
        own = [one.get_state() for one in self._own_generators()]
        return {"process": generators.capture_state(), "own": own}

    def _restore(self, state: dict[str, Any]) -> None:
        """Set the generators to a state of `_capture`."""
        for generator, own in zip(self._own_generators(), state["own"], strict=False):
            generator.set_state(own)
        generators.restore_state(state["process"])

    def _own_generators(self) -> list[torch.Generator]:
        """Return the generators of the loader and the samplers.

        The process's generators are left out.
        """
        batches: Any = self.loader.batch_sampler
        places = [self.loader, self.loader.sampler, batches, getattr(batches, "sampler", None)]
        found = [getattr(place, "generator", None) for place in places]
        return list(
            {
                id(generator): generator
                for generator in found
                if isinstance(generator, torch.Generator)
            }.values()
        )


def unfollowed_reason(loader: object) -> str:
    """Return why the epochs of a loader cannot be followed. Return "" if they can.

    Not followed are objects that are no DataLoader of torch, and persistent workers.
    """
    if not isinstance(loader, DataLoader):
        return f"{type(loader).__name__} is not a torch DataLoader and has no state_dict"
    if loader.num_workers and loader.persistent_workers:
        return "the state of persistent_workers is their own"
    return ""
