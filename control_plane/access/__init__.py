"""Access control: roles, principals, tokens, and the ownership of objects."""
