"""What only a GPU can tell of this project, asked in one command and kept in one JSON file: see README.md here."""
