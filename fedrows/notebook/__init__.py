"""What scripts and notebooks call: runs in folders with their pages, and results that show."""
