"""The control plane's part of the local cloud: instances are processes of one machine."""
