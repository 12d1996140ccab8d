"""Trains a plain module, written for one client, over a whole cohort."""
