"""Any vision-language model behind an OpenAI-compatible server."""
