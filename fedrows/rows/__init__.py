"""Rows of submodels: which client holds which, take, total and add, and the heat of a row."""
