"""A package whose build leaves the extension out."""
