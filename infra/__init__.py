"""The deployment of clusters: the archives of functions, and the stacks of teams."""
