"""Starting and stopping Flower's processes: SuperLink, SuperNodes, executors."""
