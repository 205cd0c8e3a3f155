"""What pip, conda and cotainr do with an environment or requirements file."""
