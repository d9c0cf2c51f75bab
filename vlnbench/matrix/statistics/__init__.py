"""What a matrix says beyond its rows: effects, their intervals, and the smallest that it can detect."""
