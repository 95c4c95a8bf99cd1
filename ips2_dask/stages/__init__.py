"""The seven stages: each reads stored arrays, maps a kernel over partitions, and returns small facts.

A stage module has ``VERSION`` (raised when its results change), ``depends_on`` (its own parameters, for its key) and
``run`` (the work). Stages do not import one another: they meet in stored arrays.
"""
