"""The context of sentences: the actor and user of a message, and names of the experiment."""

from collections.abc import Callable
from dataclasses import dataclass
from sys import float_info
from typing import Any

from control_plane.actors.messages import experiment as to_experiment
from control_plane.actors.messages import trial as to_trial
from control_plane.queries.sentences.phrases import CAUSE_CHARACTERS_MAX, number_text
from control_plane.searchers.method import ENDLESS

_SINGULARS = {"batches": "batch", "records": "record", "epochs": "epoch", "steps": "step"}


@dataclass(frozen=True)
class SentenceContext:
    """The facts that a sentence needs in addition to the message."""

    address: str
    """The address of the actor that received the message, such as `trial#7`."""
    by: str
    """The user whose command the message is; "" for messages between actors."""
    metric: str
    """The name of the metric that guides the search."""
    unit: str
    """The configured unit of lengths, in the plural, such as `epochs`."""
    trial_id: Callable[[int], int | None]
    """Returns the cluster-wide id of the experiment's trial with a number, or None if the trial
    does not exist. May read the state table.
    """
    target_noun: str = "batch"
    """The unit, in the singular, of the lengths in messages from trials: `batch` or `epoch`."""

    @property
    def name(self) -> str:
        """The actor's name in sentences, like `trial 7`."""
        return self.address.replace("#", " ")

    @property
    def user(self) -> str:
        """The user at the end of a sentence, like ` by ana`; "" without a user."""
        return f" by {self.by}" if self.by else ""

    def trial(self, number: int) -> str:
        """Return the name of the experiment's trial with this number, like `trial 7`.

        A trial that does not exist is `the trial with number 6`.
        """
        trial_id = self.trial_id(number)
        return f"the trial with number {number}" if trial_id is None else f"trial {trial_id}"

    def allocation(self, epoch: int) -> str:
        """Return the name of an allocation, like `allocation 7.2`: trial and epoch.

        The trial is the receiver of the message.
        """
        return f"allocation {self.address.partition('#')[2]}.{epoch}"

    def node(self, message: to_trial.ContainerStateReported | to_trial.AllocationExited) -> str:
        """Return the name of the message's node, like `node 1 of allocation 7.2`.

        For an allocation of one node, return the name of the allocation.
        """
        node = f"node {message.node_rank} of " if message.nodes > 1 else ""
        return f"{node}{self.allocation(message.epoch)}"

    def metric_text(self, metric: float | None) -> str:
        """Return the searcher metric with a value, like `accuracy 0.93`.

        Without a finite number, return `no finite accuracy`.
        """
        # The largest float stands for a metric that was not a finite number.
        if metric is None or abs(metric) >= float_info.max:
            return f"no finite {self.metric}"
        return f"{self.metric} {number_text(metric)}"

    def result_text(
        self, message: to_trial.LengthReached | to_experiment.TrialLengthReached
    ) -> str:
        """Return the reported metric, or the JSON value that a custom search gets instead.

        The value is cut after CAUSE_CHARACTERS_MAX characters.
        """
        if message.value:
            return f"{message.value:.{CAUSE_CHARACTERS_MAX}}"
        return self.metric_text(message.metric)

    def length_text(self, length: float) -> str:
        """Return a length with the unit, like `3 epochs`. ENDLESS becomes `the end`."""
        unit = _SINGULARS.get(self.unit, self.unit) if length == 1 else self.unit
        return "the end" if length == ENDLESS else f"{number_text(length)} {unit}"


Sentence = Callable[[Any, SentenceContext], str]
"""Renders a message of one type as a sentence."""
