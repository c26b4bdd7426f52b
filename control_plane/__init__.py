"""The control plane: decides and remembers, and never touches a cloud."""
