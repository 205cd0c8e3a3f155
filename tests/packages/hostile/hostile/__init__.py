"""A module whose import takes a while, so that something can happen while it is probed."""

import time

ANSWER = 0
time.sleep(1)
