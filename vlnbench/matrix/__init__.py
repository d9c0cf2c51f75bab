"""Ablation matrix: many settings from one file, each trained and evaluated, failures included.

`spec` reads the file and expands it, `plans` says what settings will need, `work` where their work lies and which
commands do it; `stage` runs one command, `runner` all of them, `rows` turns what they recorded into rows, and
`effects`, `table` and `plots` show them. Whatever is shown comes from records on disk, never from printed text.
"""
