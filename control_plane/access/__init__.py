"""Access control: roles, principals and the tokens that stand for them."""
