"""A trained model in use: written into a bundle, loaded, asked, and adapted to a new client."""
