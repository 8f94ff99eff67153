"""The communication profile of a run: where each rank's time went, and who kept whom waiting."""

from rankroom.profile.report import Profile
from rankroom.profile.shares import Shares

__all__ = ["Profile", "Shares"]
