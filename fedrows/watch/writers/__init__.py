"""Writers of what a run measures; a file here has `opened(watching)`: an observer, or None."""
