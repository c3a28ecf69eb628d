"""Speed and resource use of encoders: latency, throughput, cold start, memory, size."""
