"""The rows of searches that wait for a suggestion, apart from the actor: who looks whether there is
one needs no more of it.
"""

SUGGESTIONS = "suggestions"
