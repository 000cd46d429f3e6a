"""Fixtures of pytest with containers; pytest loads ``hyperruntime_pytest.plugin`` in every run."""
