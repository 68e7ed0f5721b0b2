"""numamirror runs quantized GGUF language models on multi-socket CPU servers."""
