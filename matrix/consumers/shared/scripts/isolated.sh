# Packages of ~/.local and PYTHONPATH of this machine would be used instead of the environment's.
unset PYTHONPATH PYTHONHOME
export PYTHONNOUSERSITE=1
export SINGULARITYENV_PYTHONNOUSERSITE=1 APPTAINERENV_PYTHONNOUSERSITE=1
