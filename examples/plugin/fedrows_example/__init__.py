"""An algorithm, a model, a task and a writer for fedrows."""
