"""An HTTP server for one machine: embeddings, re-ranking and search, for OpenAI's and other clients."""
