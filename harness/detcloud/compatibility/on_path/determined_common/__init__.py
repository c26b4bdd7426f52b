"""The package `determined_common` that Determined 0.12 had beside `determined`."""

from detcloud.compatibility.modules import install_modules, module_namespace

install_modules()
globals().update(module_namespace(__name__))
