"""The names of the functions: what an image serves, and what a stack has."""

from typing import Final

FUNCTIONS: Final = ("api", "advance", "tick", "checkpoint_gc", "suggest")
