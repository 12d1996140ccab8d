"""Messages between the server and its nodes: their bytes, and the checks on them."""
