"""What a user states: settings, requirements, environments and locks."""
