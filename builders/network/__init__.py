"""HTTP sessions, downloads, git, URLs and the settings of pip for them."""
