"""A stand-in for Apex; like Apex, it can be imported whether or not anything was compiled."""
