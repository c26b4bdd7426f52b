"""The package that `determined.common` was in the releases of 0.12."""

from detcloud.compatibility.modules import install_modules, module_namespace

install_modules()
globals().update(module_namespace("determined.common"))
