"""Steps of a user of JupyterLab in a browser."""

from __future__ import annotations

from typing import Any

# The first start of a kernel compiles its packages.
KERNEL_MS_MAX = 120_000


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
    window.keyboard.press("Shift+Enter")
    window.locator(".jp-OutputArea-output").locator(output).first.wait_for(timeout=KERNEL_MS_MAX)
