"""Several builds at once: the order of tasks, and the executors that run them."""
