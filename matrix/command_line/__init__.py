"""What commands share: options, their context, and how they stop."""
