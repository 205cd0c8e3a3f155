"""The build graph as text and as pictures; pure functions from a graph to text."""
