"""The refusal of a configuration with a schedule where a single experiment is expected.

The server sends the refusal. The command line recognizes the refusal, and then creates a schedule
with the same submission. So a schedule in a template is found, too.
"""

from __future__ import annotations

SCHEDULED_ALONE = "repeats the experiment, and this request creates a single experiment"
