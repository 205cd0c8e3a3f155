#!/usr/bin/env bash
@ABOUT@
# The name of this file is that of the program. To run another program of the environment, link this file.
exec bash @ENVIRONMENT@ "${MATRIX_PROGRAM:-${0##*/}}" "$@"
