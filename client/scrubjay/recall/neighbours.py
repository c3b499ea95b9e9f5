"""The neighbours of a note: how many notes before and after it count, and how near in time they have to be."""

from __future__ import annotations

NEIGHBOURS = 2
"""Neighbours on either side whose terms count; `ranking` has a weight for each."""
MAX_PAUSE_SECONDS = 600
"""Seconds up to which notes of no session that follow each other are neighbours."""
