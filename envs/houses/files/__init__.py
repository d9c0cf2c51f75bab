"""Generated datasets on disk: episodes, scenes, augmentation, questions, statistics."""
