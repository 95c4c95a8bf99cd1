"""A run from its input to its labels: prepared, then one stage after another, each resumed from its last part."""
