"""The runtime that runs trials in containers of Apptainer, which needs no service."""
