"""How much memory this process has used."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_rss() -> int:
    """Peak resident bytes of this process, its parents left out where the system tells."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
