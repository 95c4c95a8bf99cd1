"""One file per command: what it is for, its options, and the call that it makes."""
