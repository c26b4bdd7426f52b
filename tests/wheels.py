"""Wheels of a single module, for tests that install packages without a network."""

from __future__ import annotations

import io
import zipfile


def wheel(name: str, version: str = "1", *, script: str = "") -> tuple[str, bytes]:
    """Return the file name and the content of a wheel whose module has `version` as VERSION.

    Args:
        script: the name of a console script that prints the module's file and version.
    """
    info = f"{name}-{version}.dist-info"
    main = "def main():\n    print('script', __file__, VERSION)\n"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n{main}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script} = {name}:main\n"
    record = f"{info}/RECORD"
    files[record] = "".join(f"{path},,\n" for path in (*files, record))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return f"{name}-{version}-py3-none-any.whl", content.getvalue()
