"""``matrix check``: what pip, conda and cotainr will make of a file that a person wrote."""
