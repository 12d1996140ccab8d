"""Fetches, caches and reads files, imports plug-ins, and writes files completely or not at all."""
