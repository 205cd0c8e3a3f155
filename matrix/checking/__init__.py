"""How pip, conda and cotainr read an environment or requirements file."""
