"""The plan of a run: automatic choices, projected memory, disk, tasks, time and scheduler traffic, and its checks."""
