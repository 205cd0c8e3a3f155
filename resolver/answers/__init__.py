"""From a solution or a contradiction to an answer: resolution, confirmation, conflict, table."""
