"""Everything that is printed or written as text or JSON."""
