"""Room 2, DECODE: Index → Pixels. Every image once, in worker processes, to uint8 at training size."""
