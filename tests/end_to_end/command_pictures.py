"""`python -m tests.end_to_end.command_pictures FOLDER`: pictures of a notebook and a shell.

The pictures of docs/commands.md: JupyterLab in a browser, and a terminal with `detcloud shell`.
"""

from __future__ import annotations

import html
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.end_to_end.browser import open_window, start_chromium
from tests.end_to_end.jupyter_steps import run_cell
from tests.end_to_end.laptop import DETCLOUD, DIGITS, Laptop
from tests.end_to_end.page_screenshots import save_picture
from tests.end_to_end.tunnel_steps import Background

SIZE = {"width": 1200, "height": 760}
TERMINAL_SIZE = {"width": 1000, "height": 430}
LAB_URL = r"http://127\.0\.0\.1:\d+/lab\?token=\S+"
CELL = """\
import os, torch
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

print("slots:", os.environ["DET_SLOT_IDS"], " torch", torch.__version__)
digits = load_digits()
figure, axes = plt.subplots(1, 8, figsize=(8, 1.2))
for axis, image, target in zip(axes, digits.images, digits.target):
    axis.imshow(image, cmap="gray_r"); axis.set_title(target); axis.axis("off")
"""
# Each line is typed after the prompt of the line before.
LINES = (
    'echo "slots: $DET_SLOT_IDS"; ls',
    "head -5 const.yaml",
    "python3 -c 'import torch; print(torch.rand(3).tolist())'",
    "exit",
)
PROMPT = "$ "
ANSWER_SECONDS_MAX = 60.0
TERMINAL = """\
<body style="margin: 0; background: #16181d; color: #d6d9e0;">
<pre style="margin: 0; padding: 18px; font: 15px/1.5 monospace; white-space: pre-wrap;">{}</pre>
"""


def main() -> int:
    """Save both pictures."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as home:
        laptop = Laptop(Path(home) / "home", LOGNAME="ada")
        try:
            laptop.run("up", "--slots", 1)
            with start_chromium() as chromium:
                take_notebook_picture(chromium, laptop, folder)
                take_shell_picture(chromium, laptop, folder)
        finally:
            laptop.end()
    return 0


def take_notebook_picture(chromium: Any, laptop: Laptop, folder: Path) -> None:
    """Run a cell in JupyterLab on a slot of the cluster, and save a picture."""
    words = "notebook", "start", "--no-browser", "--context", DIGITS
    with Background(laptop, *words) as notebook:
        number = notebook.read_until(r"^notebook (\d+) ").group(1)
        url = notebook.read_until(LAB_URL).group(0)
        with open_window(chromium, laptop, viewport=SIZE) as browser:
            run_cell(browser.window, url, CELL, "img")
            # JupyterLab asks a new user whether to show news.
            browser.window.get_by_role("button", name="No", exact=True).click()
            browser.window.wait_for_timeout(1_000)
            save_picture(browser, folder, "notebook")
    laptop.run("notebook", "kill", number)


def take_shell_picture(chromium: Any, laptop: Laptop, folder: Path) -> None:
    """Type lines into a shell of the cluster, and save a picture of the terminal."""
    words = "shell", "start", "--context", str(DIGITS)
    text = f"{PROMPT}detcloud {' '.join(words[:2])} --context digits\n{type_lines(laptop, words)}"
    with open_window(chromium, laptop, viewport=TERMINAL_SIZE) as browser:
        browser.window.set_content(TERMINAL.format(html.escape(text)))
        save_picture(browser, folder, "shell")


def type_lines(laptop: Laptop, words: tuple[str, ...]) -> str:
    """Return what a terminal shows while a user types LINES into `detcloud WORDS`."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [*DETCLOUD, *words],
        env={**laptop.environment, "TERM": "dumb"},
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    # The prompt of the machine has the machine's name.
    greeting = _read_until_prompt(outer)
    os.write(outer, f"PS1='{PROMPT}'\n".encode())
    _read_until_prompt(outer)
    shown = greeting[: greeting.rfind("\n") + 1] + PROMPT
    for line in LINES:
        os.write(outer, f"{line}\n".encode())
        shown += _read_until_prompt(outer)
    os.close(outer)
    process.wait(ANSWER_SECONDS_MAX)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", shown)


def _read_until_prompt(terminal: int) -> str:
    """Return the output of the terminal until the next prompt or the end."""
    shown, until = b"", time.monotonic() + ANSWER_SECONDS_MAX
    while not shown.endswith((b"$ ", b"# ")):
        if not select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]:
            raise AssertionError(f"no prompt in {shown!r}")
        try:
            part = os.read(terminal, 4_096)
        except OSError:
            # Linux reports the end of a terminal as an error.
            break
        shown += part
    return shown.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
