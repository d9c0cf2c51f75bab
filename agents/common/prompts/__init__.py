"""What a vision-language model is asked in words."""
