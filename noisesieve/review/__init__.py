"""Room 6, SHOW: report → review.html, one file that opens from disk and loads nothing from a server."""
