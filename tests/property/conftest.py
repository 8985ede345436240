"""Hypothesis profiles: `default`, `ci` (derandomized; chosen when CI is set) and `nightly` (deep).

HYPOTHESIS_PROFILE names another one, e.g. `HYPOTHESIS_PROFILE=nightly pytest tests/property`. No profile has
a deadline: a loaded machine is not a defect.
"""

import os

from hypothesis import HealthCheck, settings

SLOW_IS_FINE = [HealthCheck.too_slow]

settings.register_profile(
    "default", max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=SLOW_IS_FINE
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("nightly", settings.get_profile("default"), max_examples=3000, stateful_step_count=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))
