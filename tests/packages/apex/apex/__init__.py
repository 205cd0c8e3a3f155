"""A stand-in for Apex; like Apex, it imports whether or not anything was compiled."""
