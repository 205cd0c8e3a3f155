"""What this machine has for building and running ROCm wheels, and what each lack means."""
