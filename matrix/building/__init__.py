"""The tasks of builds as commands plan, submit and follow them; the container that they end in."""
