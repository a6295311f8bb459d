"""Every Python of an engine whose PYTHONPATH names this directory sleeps where it would yield.

Ranks of a CPU engine wait for each other in loops around sched_yield. With the scheduler of some kernels (seen with 6.18)
two such loops keep a core from everything else, the kernel's own threads included, for a minute at a time: the log then
says that rcu_preempt starves. A test of two ranks on two cores must not take an hour for that. The same loop is between an
engine's core and its only worker, so two engines beside each other are enough.
"""

import os
import time

_NAP_S = 50e-6

os.sched_yield = lambda: time.sleep(_NAP_S)
