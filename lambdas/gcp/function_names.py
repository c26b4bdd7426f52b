"""The names of a cluster's functions, which the image serves and the stack deploys."""

from typing import Final

FUNCTIONS: Final = ("api", "advance", "tick", "checkpoint_gc", "suggest")
