"""The notice of settings that nobody reads in the process of a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from detcloud.shared.training_settings import LoopOfTrial


def unread_settings_teller(loop: LoopOfTrial, config: Mapping[str, Any]) -> Callable[[], None]:
    """A function that names, the first time, what the configuration asks for in vain.

    It is to be called once the loop is known, that is with the first report or at the end.
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
