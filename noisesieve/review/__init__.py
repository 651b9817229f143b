"""Room 6, SHOW: report → review.html, one file that opens from disk and asks nobody for anything."""

from __future__ import annotations

from noisesieve.review.facts import Page, choose, gather
from noisesieve.review.page import render

__all__ = ["Page", "choose", "gather", "render"]
