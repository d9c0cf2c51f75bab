"""The work folder of a matrix: the commands, who watches them, when they are done, and finished work elsewhere."""
