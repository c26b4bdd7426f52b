"""The signal by which the agent lets a process of a trial print the stacks of its threads.

SIGUSR1 does the same for users. Training code often handles SIGUSR1 itself, for example to save a
checkpoint, so that the agent uses a real-time signal, which hardly any program handles.
"""

from __future__ import annotations

import signal
from typing import Final

STACK_SIGNAL: Final = getattr(signal, "SIGRTMIN", 0) + 10 if hasattr(signal, "SIGRTMIN") else 0
"""The number of the signal. 0 on systems without real-time signals."""
