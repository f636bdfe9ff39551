"""The engine on a CPU beside vLLM's CPU build and OpenVINO GenAI."""
