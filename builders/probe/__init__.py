"""Probe an installed wheel or a whole environment: run one script in it and judge the reply.

`payload` is that script, and `child` what it runs for each import; `ask` runs it and parses the reply,
`wheel` compares a wheel with its recipe, `environment` an environment with its lock.
"""
