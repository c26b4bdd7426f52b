"""The version of this package."""

# Written here so that an import costs no look into the installed packages; pyproject.toml and
# control_plane/config/images.py say the same.
__version__ = "0.1.0"
