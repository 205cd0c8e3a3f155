runtime=$(command -v singularity || command -v apptainer) || fail "neither SingularityCE nor Apptainer is on PATH"
