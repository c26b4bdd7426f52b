"""A notice in the log about settings that a trial's training loop ignores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from detcloud.shared.training_settings import LoopOfTrial


def unread_settings_teller(loop: LoopOfTrial, config: Mapping[str, Any]) -> Callable[[], None]:
    """Return a function that prints, on the first call, the settings that `loop` does not read.

    Call the function once the loop is known: with the first report or at the end.
    """
    is_told = False

    def tell() -> None:
        nonlocal is_told
        if is_told:
            return
        is_told = True
        for notice in loop.unread_setting_notices(config):
            print(f"[detcloud] {notice}", flush=True)

    return tell
