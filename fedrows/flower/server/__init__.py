"""The server's side: who has enrolled, and how a round reaches them."""
