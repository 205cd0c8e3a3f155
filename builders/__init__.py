"""Build, check and publish wheels. All side effects are in this package."""
