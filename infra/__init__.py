"""What a deployed cluster is made of: the bundle of its functions, and the stacks of its teams."""
