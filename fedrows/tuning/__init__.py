"""The search of rates and options, on validation examples alone: `fedrows tune`."""
