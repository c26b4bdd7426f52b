"""The control plane's part of Google Cloud."""
