"""Measures a model: evaluation, metrics, trivial baselines, summaries."""
