"""Apply recipes of the catalog to builds. No program is run."""
