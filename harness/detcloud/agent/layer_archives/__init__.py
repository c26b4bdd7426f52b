"""Archives of layers in the cluster's object store, so that other machines need not install."""
