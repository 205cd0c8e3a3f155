"""Verifying a finished environment, in a container or on this machine, against its lock.

What is asked, by which script, and what the answers mean; a wheel alone is proven in `builders.probes`.
"""
