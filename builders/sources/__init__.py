"""Sources of wheels: fetched before a build, checked against their pin, unpacked and patched."""
