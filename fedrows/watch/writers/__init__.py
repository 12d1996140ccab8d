"""Who writes down what a run measures. A file here has `opened(watching)`: an observer, or None."""
