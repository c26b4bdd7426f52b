"""Steps of a user of JupyterLab in a browser."""

from __future__ import annotations

from typing import Any

from tests.patience import wait_until

# The first start of a kernel compiles packages.
KERNEL_MS_MAX = 120_000
ANSWER_MS = 3_000


def run_cell(window: Any, url: str, code: str, output: str) -> None:
    """Create a notebook in JupyterLab at `url`, run a cell, and wait for the output.

    `output` is a CSS selector or Playwright's `text=` selector within the cell's output.
    """
    window.goto(url)
    card = window.locator('.jp-LauncherCard[data-category="Notebook"]').first
    card.click(timeout=KERNEL_MS_MAX)
    cell = window.locator(".jp-Notebook .cm-content").first
    cell.wait_for(timeout=KERNEL_MS_MAX)
    window.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').first.wait_for(
        timeout=KERNEL_MS_MAX
    )
    cell.click()
    # Typing would indent the lines again.
    window.keyboard.insert_text(code)
    shown = window.locator(".jp-OutputArea-output").locator(output).first

    def run() -> bool:
        # JupyterLab ignores the keys until the kernel is connected, without a message.
        cell.click()
        window.keyboard.press("Shift+Enter")
        window.wait_for_timeout(ANSWER_MS)
        return bool(shown.is_visible())

    wait_until(run)
