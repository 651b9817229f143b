"""Room 6, HAND OVER: report → an annotation tool's format. A new one is a file here and a line in formats.py."""
