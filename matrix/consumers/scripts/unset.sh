# Bind variables of site modules end a build with --writable, and a PYTHONPATH of this machine makes
# pip believe that things are installed.
unset SINGULARITY_BIND SINGULARITY_BINDPATH APPTAINER_BIND APPTAINER_BINDPATH PYTHONPATH PYTHONHOME
@RUNTIME@
