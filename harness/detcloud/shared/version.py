"""The version of this package."""

# A constant, so that an import does not read the metadata of installed packages. pyproject.toml and
# control_plane/config/images.py contain the same version.
__version__ = "0.1.0"
