"""The paper's experiments: baselines, tables and figures, and `ips2 reproduce`."""
