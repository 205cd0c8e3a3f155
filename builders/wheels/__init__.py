"""Read, write and label wheels."""
