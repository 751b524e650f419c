"""What every test runs under: hypothesis draws the same examples on every machine and in every run.

``pytest --hypothesis-profile=random --hypothesis-seed=N`` draws others.
"""

from hypothesis import HealthCheck, settings

# No limits of time in either: machines are shared, and a test that fails at times is none.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, database=None, **PATIENT)
settings.register_profile("random", print_blob=True, **PATIENT)
settings.load_profile("fixed")
