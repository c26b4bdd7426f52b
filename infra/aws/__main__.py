"""The program that `pulumi up` runs in this folder."""

import sys
from pathlib import Path

# Pulumi runs this file by path, so the folder of the imported packages is not on sys.path yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from infra.aws.program import run

run()
