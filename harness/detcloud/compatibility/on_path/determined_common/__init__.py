"""The package `determined_common`, which Determined 0.12 had next to `determined`."""

from detcloud.compatibility.modules import install_modules, module_namespace

install_modules()
globals().update(module_namespace(__name__))
