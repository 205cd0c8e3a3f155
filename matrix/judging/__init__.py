"""The one judge: rules of lines, of packages and of what is installed, the verdict, and the repair."""
