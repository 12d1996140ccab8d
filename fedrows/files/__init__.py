"""Files: written whole or not at all, fetched, cached, read line by line."""
