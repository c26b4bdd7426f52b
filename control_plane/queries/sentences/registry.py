"""The sentence of each type of message in an experiment's history."""

from collections.abc import Mapping

from control_plane.queries.sentences.agent import OF_AGENTS
from control_plane.queries.sentences.context import Sentence, SentenceContext
from control_plane.queries.sentences.experiment import OF_EXPERIMENTS
from control_plane.queries.sentences.pool import OF_POOLS
from control_plane.queries.sentences.trial import OF_TRIALS

SENTENCES: Mapping[type, Sentence] = {**OF_EXPERIMENTS, **OF_TRIALS, **OF_POOLS, **OF_AGENTS}
"""The function that renders a message, by the type of the message. Every type has a function."""


def sentence(message: object, context: SentenceContext) -> str:
    """Return a sentence, without a full stop, that describes a message for users.

    The sentence contains no secret values of the experiment's configuration.

    Raises:
        KeyError: `message` is not a message between actors.
    """
    return SENTENCES[type(message)](message, context)
