"""Several engines as one: each session has its place at one of them, and their weights change together."""

from polar_mitm.engine.pool.pool import EnginePool
from polar_mitm.engine.pool.seat import OtherPolicy, Seat, Trail, Tried

__all__ = ["EnginePool", "OtherPolicy", "Seat", "Trail", "Tried"]
