"""What a source tree states about its build, and what kind of source it is; nothing in it is executed."""
