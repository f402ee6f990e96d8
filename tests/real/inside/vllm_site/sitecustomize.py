"""Lets vLLM share its cores: on the path of its interpreters, it replaces the yield in which they spin.

The engine and its worker wait for each other by `sched_yield`. Linux 6.18 puts back every other runnable process
behind one that yields: on two cores a test beside a long answer got 0.6 s of CPU in 97 s.
"""

import os
import time

os.sched_yield = lambda: time.sleep(20e-6)
