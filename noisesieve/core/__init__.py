"""What every room may use: errors, settings, options, records, text, files, progress. Core imports no room."""
