"""Run the check. `make dist/gpu_check.pyz` packs the folder into a program of one file."""

import sys

from gpu_check import main

sys.exit(main())
