"""The parts of the control plane for pools whose instances are processes on a single machine."""
