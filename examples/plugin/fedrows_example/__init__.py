"""An algorithm, a model, a task, a writer and a privacy mechanism for fedrows."""
