"""The default and the maximum of `checkpoint_deletions_per_second` of cluster configurations.

They are in a module of their own, so that functions can import them without pydantic.
"""

from typing import Final

DELETIONS_PER_SECOND: Final = 100
DELETIONS_PER_SECOND_MAX: Final = 10_000
