"""The actions of ``matrix farm``, each a module like those of the commands."""
