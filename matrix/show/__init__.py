"""Everything that is printed or written as text, JSON or a drawing."""
