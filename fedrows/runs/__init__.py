"""Drives a run, and keeps it on disk: folder, settings, checkpoint, export."""
