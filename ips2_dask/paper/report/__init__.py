"""What the records of the paper's experiments say beside its printed figures."""
