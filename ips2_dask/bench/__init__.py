"""`ips2 bench`: one file a benchmark, each a generator of flat records; importing this package measures nothing."""
