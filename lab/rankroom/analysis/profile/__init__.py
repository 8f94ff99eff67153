"""The communication profile of a run: where each rank's time went, and which ranks were late."""

from rankroom.analysis.profile.report import Profile
from rankroom.analysis.profile.shares import Shares

__all__ = ["Profile", "Shares"]
