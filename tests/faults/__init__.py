"""Faults while commands run: full disks, folders and scenes that change, servers that misbehave, odd terminals."""
