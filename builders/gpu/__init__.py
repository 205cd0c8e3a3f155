"""What wheels contain for GPUs."""
