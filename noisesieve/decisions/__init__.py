"""Room 6, TAKE BACK: decision files → one outcome per row, or an error that names every problem."""
