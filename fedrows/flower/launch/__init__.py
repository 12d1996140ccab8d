"""Starts and stops Flower's processes: SuperLink, SuperNodes, executors."""
