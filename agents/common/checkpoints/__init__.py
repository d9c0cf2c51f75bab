"""Checkpoint folders and files as others save them: read, checked, written so that they appear whole."""
