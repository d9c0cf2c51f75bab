"""Tables in every format: cells, whole sheets, and what fits on a terminal."""
