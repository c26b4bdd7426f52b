"""The parts of the control plane that are specific to Google Cloud."""
