"""The bounds of `checkpoint_deletions_per_second`, which functions read without the models."""

from typing import Final

DELETIONS_PER_SECOND: Final = 100
DELETIONS_PER_SECOND_MAX: Final = 10_000
