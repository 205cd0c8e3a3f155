"""Builds, checks and publishes wheels. All side effects are in this package."""
