"""Colours and markers of the methods in the paper's figures."""

from __future__ import annotations

COLORS = {"SC": "#0072B2", "SSC": "#56B4E9", "CAVE": "#E69F00", "HGC": "#CC79A7", "PPC": "#009E73", "IPS2": "#D55E00"}
"""Okabe and Ito's, which colour-blind readers can tell apart."""

MARKERS = {"SC": "o", "SSC": "v", "CAVE": "^", "HGC": "D", "PPC": "s", "IPS2": "*"}
