"""The partition of searches that wait for a suggestion.

It is a module of its own so that readers of these rows do not import the experiment actor.
"""

SUGGESTIONS = "suggestions"
