"""Room 6, SHOW: report → review.html, one file that opens from disk and loads nothing from a server."""

from __future__ import annotations

from noisesieve.review.page import render_page
from noisesieve.review.page_data import PageData, build_page_data, decided_rows

__all__ = ["PageData", "build_page_data", "decided_rows", "render_page"]
