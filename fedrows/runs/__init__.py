"""A run on disk: its folder, its checkpoint, its export."""
