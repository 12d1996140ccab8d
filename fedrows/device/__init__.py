"""Device programs: one client's local training without PyTorch, as ONNX and a manifest."""
