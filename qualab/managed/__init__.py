"""A managed pair of vLLM servers: its file read, its processes started and stopped, its manifests written."""
