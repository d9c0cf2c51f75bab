"""What families whose networks answer in words share: tokenizers, parts, planning, walks by chance."""
