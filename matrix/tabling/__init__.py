"""The feasible matrix as text, CSV, JSON and HTML, in pieces as its rows are found."""
