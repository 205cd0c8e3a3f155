"""Recipes of the catalog, and how one is applied to a build. No program is run."""
