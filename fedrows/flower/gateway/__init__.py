"""A gateway: a node of the federation whose clients are devices that speak HTTPS."""
