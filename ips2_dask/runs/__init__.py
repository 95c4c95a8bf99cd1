"""A finished run directory: opened, predicted from, exported, checked and cleaned."""
