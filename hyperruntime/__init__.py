"""hyperruntime: a safe container on whatever engine is here, and thousands of commands a second in it."""

from __future__ import annotations
