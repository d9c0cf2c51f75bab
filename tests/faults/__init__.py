"""Faults while commands run: disks that fill, folders and scenes that change, servers that misbehave, odd terminals."""
