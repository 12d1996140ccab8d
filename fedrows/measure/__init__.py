"""What a model is worth: evaluation, metrics, trivial baselines, summaries."""
