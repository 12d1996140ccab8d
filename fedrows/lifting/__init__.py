"""Any plain module, trained for a whole cohort at once."""
