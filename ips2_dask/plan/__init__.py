"""What a run is expected to need before it starts: memory, disk, time and scheduler traffic."""
