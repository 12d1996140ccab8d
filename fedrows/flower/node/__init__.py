"""A node: it answers the server's messages for the clients that it hosts."""
