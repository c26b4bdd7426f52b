"""The rows of searches that wait for a suggestion, apart from the actor: looking for one needs
nothing else of it.
"""

SUGGESTIONS = "suggestions"
