"""What fixed density, and what weighting, a measured run would have been better trained with."""

from opportune.diagnostics.suggest.decide import Choice, Suggestion, suggest
from opportune.diagnostics.suggest.evidence import Profile, from_losses, from_records

__all__ = ["Choice", "Profile", "Suggestion", "from_losses", "from_records", "suggest"]
