# The present directory, and file systems of the site, which a container does not see without a bind.
binds=${PWD%/}
@LOOP@
