"""Hypothesis draws the same examples in every run: a red test stays red."""

from __future__ import annotations

import hypothesis

hypothesis.settings.register_profile(
    "gnnjit", derandomize=True, deadline=None, max_examples=20, print_blob=False
)
hypothesis.settings.load_profile("gnnjit")
