"""Edges from positions: all pairs within a radius, or the nearest of each, inside `jit`.

In: `[N, D]` positions, a periodic box if there is one. Out: a `Graph` of a static capacity, sorted
by destination, and whether it held everything. It knows graphs alone.
"""

from gnnjit.geometry.box import displacement
from gnnjit.geometry.nearest import NearestSearch, nearest
from gnnjit.geometry.radius import Found, RadiusSearch, radius

__all__ = ["Found", "NearestSearch", "RadiusSearch", "displacement", "nearest", "radius"]
